// The bench page: how fast a model loads, reads and writes in this browser. The figures are the engine's own, of its
// transcripts (docs/transcript.md); a round's first words are its own, so that nothing read before is used again.

import { Cancelled, SLM2 } from "./client.js";
import { button, byId, count, download, make, seconds } from "./dom.js";
import { errorCard } from "./errors.js";

/** @typedef {{reading: number, writing: number, first_token_ms: number, sha256: string}} Round */

const SENTENCE = "The sea was calm, the wind had turned to the north, and the boats lay on the sand until the morning. ";
const SENTENCES = 10;
const MAX_TOKENS = 64;
// The same tokens each time: the likeliest.
const PARAMS = { temperature: 0, max_tokens: MAX_TOKENS };

const bar = byId("bar", HTMLProgressElement);
const errors = byId("error", HTMLElement);
const start = byId("start", HTMLButtonElement);
const cancel = byId("cancel", HTMLButtonElement);
/** What the last run came to. @type {Record<string, any> | null} */
let measured = null;
/** @type {AbortController | null} */
let running = null;

/** @param {string} text @param {number | null} share */
function doing(text, share) {
  byId("doing", HTMLElement).textContent = text;
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
}

/** @param {"ready" | "busy" | "error"} state */
function setState(state) {
  document.documentElement.dataset.state = state;
  start.disabled = state === "busy";
  cancel.hidden = state !== "busy";
  byId("progress", HTMLElement).hidden = state !== "busy";
}

async function measure() {
  const { signal } = (running = new AbortController());
  errors.replaceChildren();
  byId("result", HTMLElement).hidden = true;
  setState("busy");
  byId("status", HTMLElement).textContent = "Measuring.";
  doing("Getting the model ready", null);
  /** @type {Awaited<ReturnType<typeof SLM2.load>> | null} */
  let model = null;
  try {
    const executor = /** @type {any} */ (byId("executor", HTMLSelectElement).value);
    model = await SLM2.load({ executor, signal });
    const nRounds = Number(byId("rounds", HTMLSelectElement).value);
    /** @type {Round[]} */
    const rounds = [];
    for (let i = 0; i < nRounds; i += 1) {
      doing(`Round ${i + 1} of ${nRounds}`, i / nRounds);
      rounds.push(await round(model, i, signal));
    }
    measured = { ...facts(model.info), rounds };
    show(measured, rounds);
    setState("ready");
  } catch (error) {
    const isOwn = error instanceof Cancelled;
    if (!isOwn) errors.replaceChildren(errorCard(error, [button("Try again", () => void measure())]));
    byId("status", HTMLElement).textContent = isOwn ? "Cancelled." : "";
    setState(isOwn ? "ready" : "error");
  } finally {
    await model?.dispose();
    running = null;
  }
}

/** @param {Awaited<ReturnType<typeof SLM2.load>>} model @param {number} i @param {AbortSignal} signal
 * @returns {Promise<Round>} */
async function round(model, i, signal) {
  const content = `Story ${i + 1}. ${SENTENCE.repeat(SENTENCES)}\nGo on with this story.`;
  const messages = [
    { role: "system", content: `Round ${i + 1}` },
    { role: "user", content },
  ];
  const { transcript, reason } = await model.chat(messages, { ...PARAMS, signal }).result;
  if (reason === "cancelled") throw new Cancelled("cancelled", "bench: cancelled");
  const { timings, sha256 } = JSON.parse(transcript);
  const { prefill_ms, prefill_tokens, decode_ms } = timings;
  const later = decode_ms.slice(1);
  const sum = later.reduce((/** @type {number} */ a, /** @type {number} */ b) => a + b, 0);
  return {
    reading: (prefill_tokens * 1000) / prefill_ms,
    writing: (later.length * 1000) / sum,
    first_token_ms: prefill_ms + decode_ms[0],
    sha256,
  };
}

/** @param {Record<string, any>} info */
function facts({ model, executor, adapter, timings }) {
  const own = { model: model.name, title: model.title, executor, adapter, load_ms: timings.total_ms };
  return { ...own, isolated: crossOriginIsolated, browser: navigator.userAgent, date: new Date().toISOString() };
}

/** @param {Record<string, any>} facts @param {Round[]} rounds */
function show({ title, executor, adapter, load_ms }, rounds) {
  byId("what", HTMLElement).textContent = [title, executor, adapter, count(rounds.length, "round")].filter(Boolean).join(" · ");
  const rate = (/** @type {"reading" | "writing"} */ name) => `${spread(rounds.map((each) => each[name]), 1)} tokens/s`;
  const figures = [
    ["Getting ready", seconds(load_ms)],
    ["Reading", rate("reading")],
    ["Writing", rate("writing")],
    ["First token after", `${spread(rounds.map((each) => each.first_token_ms), 0)} ms`],
    ["Fingerprint", `${rounds[0].sha256.slice(0, 8)}, the same in every browser`],
  ];
  const lines = figures.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  byId("figures", HTMLElement).replaceChildren(...lines);
  byId("result", HTMLElement).hidden = false;
  byId("status", HTMLElement).textContent = "Measured.";
  byId("result-title", HTMLElement).focus();
}

/** The median, and the least and most where there are several. @param {number[]} values @param {number} digits */
function spread(values, digits) {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = (sorted.length - 1) / 2;
  const median = (sorted[Math.floor(middle)] + sorted[Math.ceil(middle)]) / 2;
  if (sorted.length === 1) return median.toFixed(digits);
  return `${median.toFixed(digits)} (${sorted[0].toFixed(digits)} to ${(sorted.at(-1) ?? 0).toFixed(digits)})`;
}

byId("form", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  if (!running) void measure();
});
cancel.addEventListener("click", () => running?.abort());
byId("save", HTMLButtonElement).addEventListener("click", () => {
  download("slm2-bench.json", `${JSON.stringify(measured, null, 1)}\n`);
});
