// Request: what is asked of the model, checked as far as a page can know and put into the form in which it crosses
// to the worker: text as UTF-8, JSON as its text, ids as numbers. The engine checks ranges and meaning.

import { encode, encodeJson } from "./text.js";
import { InputError, LIMITS } from "../worker/protocol.js";

/** @typedef {import("./client.js").Message} Message */
/** @typedef {import("./client.js").Evidence} Evidence */
/** @typedef {import("./client.js").LoadOptions} LoadOptions */
/** @typedef {import("./client.js").ChatOptions} ChatOptions */

/** A value as it crosses. @typedef {(value: any, place: string) => any} Encode */

/** Sampling parameters.
 * @type {Record<string, Encode>} */
const PARAMS = {
  temperature: number,
  top_k: number,
  top_p: number,
  min_p: number,
  repetition_penalty: number,
  presence_penalty: number,
  frequency_penalty: number,
  banned_ids: idList,
  profile: string,
  logprobs: number,
  seed: (value, place) => (["number", "bigint"].includes(typeof value) ? String(value) : string(value, place)),
  max_tokens: number,
  max_reasoning_tokens: number,
  stop: (value, place) => [value].flat().map((text, i) => encode(string(text, place), `${place}[${i}]`)),
  response_format: encodeFormat,
  invalid_utf8: string,
};
// Of these null says off, as in a transcript; so does leaving them out, as no model has another value.
const MAY_BE_NULL = ["logprobs", "max_reasoning_tokens", "response_format"];

/** The rest of a prompt; what is not given is null, which the engine takes as its own default.
 * @type {Record<string, Encode>} */
const PROMPT = {
  tools: encodeList,
  enable_thinking: boolean,
  preserve_thinking: boolean,
  local_state: (value, place) => encode(string(value, place), place),
  evidence: encodeEvidence,
  budget_tokens: whole,
  continue_ids: (value, place) => (isNone(value) ? null : Uint32Array.from(idList(value, place))),
};
const CALLED = ["onPrefill", "onContext", "onReasoning", "onQueue"];
/** The names of all options that say what to ask. */
export const OPTIONS = Object.freeze([...Object.keys(PARAMS), ...Object.keys(PROMPT), "continue_from"]);

/** The request as it crosses.
 *
 * Throws InputError with the place of what is wrong.
 * @param {Message[]} messages @param {ChatOptions} options @param {string} model the name of who answers
 * @returns {Omit<import("../worker/protocol.js").ChatMessage, "type" | "id">} */
export function encodeRequest(messages, options, model) {
  /** @type {Record<string, any>} */
  const params = {};
  /** @type {Record<string, any>} */
  const prompt = {};
  for (const name of Object.keys(PROMPT)) prompt[name] = null;
  prompt.preserve_thinking = false;
  for (const [name, value] of Object.entries(continued(options, model))) {
    if (value === undefined || name === "signal" || CALLED.includes(name)) continue;
    if (value === null && MAY_BE_NULL.includes(name)) continue;
    const [target, table] = Object.hasOwn(PROMPT, name) ? [prompt, PROMPT] : [params, PARAMS];
    if (!Object.hasOwn(table, name)) {
      throw badInput("input.params", `options.${name}`, value, OPTIONS.join(" | "));
    }
    target[name] = table[name](value, `options.${name}`);
  }
  const request = /** @type {any} */ ({ messages: encodeMessages(messages), ...prompt, params });
  const bytes = sizeOf(request);
  if (bytes > LIMITS.request_bytes) {
    const detail = { place: "request", found: bytes, allowed: LIMITS.request_bytes };
    const message = `request: found ${bytes} bytes of text; allowed: at most ${LIMITS.request_bytes}`;
    throw new InputError("input.budget", message, detail);
  }
  return request;
}

/** The options with `continue_from` as ids: all that the reply holds, and the one that it continued.
 * @param {ChatOptions} options @param {string} model @returns {Record<string, any>} */
function continued({ continue_from: from, ...options }, model) {
  if (from === undefined || from === null) return options;
  const place = "options.continue_from";
  if (!isNone(options.continue_ids)) throw badInput("input.params", "options.continue_ids", options.continue_ids, `${place} alone`);
  const text = typeof from === "object" ? from.transcript : from;
  let run;
  try {
    run = JSON.parse(string(text, place));
  } catch {
    run = null;
  }
  const before = run?.request?.continue_ids ?? [];
  if (!Array.isArray(run?.generated_ids) || !Array.isArray(before)) {
    throw badInput("input.params", place, from, "a result of chat, or its transcript");
  }
  // The same ids may be another model's words.
  const found = run.artifacts?.model;
  if (found !== model) throw badInput("input.params", `${place}: artifacts.model`, found, model);
  return { ...options, continue_ids: [...before, ...run.generated_ids] };
}

/** The bytes of all texts. @param {any} value @returns {number} */
function sizeOf(value) {
  if (ArrayBuffer.isView(value)) return value.byteLength;
  if (typeof value !== "object" || value === null) return 0;
  return Object.values(value).reduce((sum, part) => sum + sizeOf(part), 0);
}

/** @param {Message[]} messages */
function encodeMessages(messages) {
  return list(messages, "messages").map((message, i) => {
    const place = `messages[${i}]`;
    const keys = ["role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name"];
    const { role, reasoning_content: thought, tool_calls: calls, ...rest } = record(message, place, keys);
    if (typeof role !== "string") throw badInput("template.role", `${place}.role`, role, "a string");
    encode(role, `${place}.role`);
    const content = isNone(rest.content) && !isNone(calls) ? "" : rest.content;
    if (typeof content !== "string") throw badInput("template.content", `${place}.content`, content, "a string");
    if (!isNone(thought) && typeof thought !== "string") {
      throw badInput("template.reasoning", `${place}.reasoning_content`, thought, "a string");
    }
    return {
      role,
      content: encode(content, `${place}.content`),
      reasoning_content: isNone(thought) ? null : encode(thought, `${place}.reasoning_content`),
      tool_calls: isNone(calls) ? null : encodeList(calls, `${place}.tool_calls`),
    };
  });
}

/** JSON text, or a list of objects. @param {any} value @param {string} place */
function encodeList(value, place) {
  if (typeof value === "string" || Array.isArray(value)) return encodeJson(value, place);
  throw badInput("input.json", place, value, "JSON text, or a list of objects");
}

/** JSON text, or an object. @param {any} value @param {string} place */
function encodeFormat(value, place) {
  if (typeof value === "string" || (typeof value === "object" && !Array.isArray(value))) return encodeJson(value, place);
  throw badInput("input.params", place, value, "JSON text, or an object");
}

/** @param {Evidence[]} evidence @param {string} place */
function encodeEvidence(evidence, place) {
  if (isNone(evidence)) return null;
  return list(evidence, place).map((each, i) => {
    const at = `${place}[${i}]`;
    const { id, relevance, content } = record(each, at, ["id", "relevance", "content"]);
    return {
      id: encode(string(id, `${at}.id`), `${at}.id`),
      relevance: number(relevance, `${at}.relevance`),
      content: encode(string(content, `${at}.content`), `${at}.content`),
    };
  });
}

/** @param {any} value */
const isNone = (value) => value === undefined || value === null || (Array.isArray(value) && value.length === 0);

/** A list that is not empty and not too long. @param {any} value @param {string} place @returns {any[]} */
function list(value, place) {
  if (Array.isArray(value) && value.length >= 1 && value.length <= LIMITS.messages) return value;
  throw badInput("input.json", place, value, `a list of 1 to ${LIMITS.messages}`);
}

/** A plain object, with none but these keys. @param {any} value @param {string} place @param {string[]} keys
 * @returns {Record<string, any>} */
function record(value, place, keys) {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw badInput("input.json", place, value, "an object");
  }
  const other = Object.keys(value).find((key) => !keys.includes(key));
  if (other !== undefined) throw badInput("input.json", `${place}.${other}`, value[other], keys.join(", "));
  return value;
}

/** Whatever else they hold: that they are options, and that what is called can be.
 * @param {LoadOptions & ChatOptions} options */
export function checkOptions(options) {
  if (typeof options !== "object" || options === null) {
    throw badInput("input.params", "options", options, "an object");
  }
  const { signal } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal)) {
    throw badInput("input.params", "options.signal", signal, "an AbortSignal");
  }
  for (const name of ["onProgress", "onWarning", ...CALLED]) {
    const callback = /** @type {any} */ (options)[name];
    if (callback !== undefined && typeof callback !== "function") {
      throw badInput("input.params", `options.${name}`, callback, "a function");
    }
  }
}

/** @param {any} value @param {string} place */
function number(value, place) {
  if (typeof value !== "number" || !Number.isFinite(value)) {
    throw badInput("input.params", place, value, "a finite number");
  }
  return value;
}

/** @param {any} value @param {string} place */
function string(value, place) {
  if (typeof value !== "string") throw badInput("input.params", place, value, "a string");
  return value;
}

/** @param {any} value @param {string} place */
function boolean(value, place) {
  if (typeof value !== "boolean") throw badInput("input.params", place, value, "true | false");
  return value;
}

/** @param {any} value @param {string} place */
function whole(value, place) {
  if (!Number.isSafeInteger(value) || value < 0) throw badInput("input.params", place, value, "a whole number");
  return value;
}

/** @param {any} value @param {string} place @returns {number[]} */
function idList(value, place) {
  const ids = value instanceof Uint32Array ? [...value] : value;
  if (!Array.isArray(ids)) throw badInput("input.params", place, value, "a list of ids");
  ids.forEach((id, i) => {
    if (!Number.isSafeInteger(id) || id < 0 || id > LIMITS.request_id) {
      throw badInput("input.params", `${place}[${i}]`, id, `an id, a whole number to ${LIMITS.request_id}`);
    }
  });
  return ids;
}

/** @param {string} code @param {string} place @param {unknown} value @param {string} allowed */
export function badInput(code, place, value, allowed) {
  const text = show(value);
  const found = text.length > 80 ? `${text.slice(0, 77)}...` : text;
  return new InputError(code, `${place}: found ${found}; allowed: ${allowed}`, { place, found, allowed });
}

/** @param {unknown} value */
function show(value) {
  if (typeof value === "string") return JSON.stringify(value);
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (value instanceof URL) return value.href;
  return typeof value === "object" && value !== null ? "an object" : String(value);
}
