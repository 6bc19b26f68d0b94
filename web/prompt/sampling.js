// How a session samples: the Prompt API's words for it, as slm.chat's parameters.

import { domError } from "./errors.js";
import { type } from "./messages.js";

/** A mode as a multiple of the model's own temperature. @type {Record<string, number>} */
const MODES = {
  "most-predictable": 0,
  predictable: 0.5,
  "slightly-predictable": 0.75,
  balanced: 1,
  "slightly-creative": 1.5,
  creative: 2,
  "most-creative": 3,
};
export const MAX_TEMPERATURE = 2;

/** @typedef {{temperature?: number, topK?: number, samplingMode?: string}} Sampling */

/** What is wrong with the options, whatever the model: throws TypeError or RangeError.
 * @param {Sampling} options @returns {Sampling} those that are given */
export function checkSampling({ temperature, topK, samplingMode }) {
  if (samplingMode !== undefined && !Object.hasOwn(MODES, samplingMode)) {
    throw type("samplingMode", samplingMode, Object.keys(MODES).join(" | "));
  }
  if (samplingMode !== undefined && (temperature !== undefined || topK !== undefined)) {
    throw type("samplingMode", samplingMode, "either a mode, or temperature and topK");
  }
  for (const [name, value, least] of /** @type {const} */ ([["temperature", temperature, 0], ["topK", topK, 1]])) {
    if (value === undefined) continue;
    if (typeof value !== "number" || Number.isNaN(value)) throw type(name, value, "a number");
    if (value < least) throw new RangeError(`${name}: found ${value}; allowed: at least ${least}`);
  }
  return { temperature, topK, samplingMode };
}

/** The parameters, and what the session says of them. @param {Sampling} sampling
 * @param {{defaults: Record<string, number>, vocab_size: number}} info of the model */
export function samplingOf({ temperature, topK, samplingMode }, { defaults, vocab_size }) {
  const raw = temperature !== undefined || topK !== undefined;
  const mode = raw ? null : (samplingMode ?? "balanced");
  const own = defaults.temperature;
  const heat = mode === null ? Math.min(temperature ?? own, MAX_TEMPERATURE) : Math.min(own * MODES[mode], MAX_TEMPERATURE);
  const most = topK === undefined ? defaults.top_k : Math.min(Math.floor(topK), vocab_size);
  return {
    params: { temperature: heat, top_k: most },
    shown: { samplingMode: mode, temperature: heat, topK: most || vocab_size },
  };
}

const EFFORTS = /** @type {const} */ ({ none: 0, low: 256, medium: 1024, high: null });

/** @typedef {{effort?: string, includeThoughts?: boolean}} Thinking */

/** Whether and how long a model thinks before it answers; nothing for one that can't and isn't asked to.
 *
 * Throws TypeError, and NotSupportedError for a model that doesn't think.
 * @param {Thinking | undefined} thinking @param {boolean} can */
export function thinkingOf(thinking, can) {
  const { effort = "none", includeThoughts = false } = thinking ?? {};
  if (!Object.hasOwn(EFFORTS, effort)) throw type("thinking.effort", effort, Object.keys(EFFORTS).join(" | "));
  if (includeThoughts) throw domError("NotSupportedError", "thinking.includeThoughts: found true; allowed: false");
  if (!can && effort !== "none") throw domError("NotSupportedError", `thinking.effort: found ${effort}; this model doesn't think`);
  if (!can) return {};
  const bound = EFFORTS[/** @type {keyof typeof EFFORTS} */ (effort)];
  return effort === "none" ? { enable_thinking: false } : { enable_thinking: true, max_reasoning_tokens: bound };
}
