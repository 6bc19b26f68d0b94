// Record: what a conversation is, where it is kept and in a file, and the check of one that comes from outside.
//
// A reply stays with its transcript, so that it can be checked, continued and accounted for as on the day it was made;
// what a turn says beside its transcript has to say the same.

import { FormatError } from "../client.js";

/** @typedef {import("../turn.js").Answered} Answered */
/** @typedef {{question: string, answered: Answered}} KeptTurn */
/** What a list shows: `titled` when a person named it, `deleted` when it is on its way out, `n_turns` questions with
 * their replies, `revision` counts the writes of its turns.
 * @typedef {{id: string, title: string, titled: boolean, created: string, changed: string, deleted: string | null,
 *   revision: number, n_turns: number}} Head */
/** What a file holds of one. @typedef {{title: string, created: string, changed: string, turns: KeptTurn[]}} Exported */

export const MAX_TITLE_CHARS = 200;
const MAX_TURNS = 10_000;
const GUESSED_TITLE_CHARS = 60;
const TRANSCRIPT_VERSION = 2;
const REASONS = ["stop_token", "stop_string", "max_tokens", "context_full", "cancelled", "invalid_utf8", "dead_end"];
const PART_STATES = ["kept", "cut", "dropped"];

/** A title for a conversation that begins so. @param {string} question */
export function guessTitle(question) {
  const characters = [...question.replace(/\s+/g, " ").trim()];
  const short = characters.slice(0, GUESSED_TITLE_CHARS).join("").trimEnd();
  return (characters.length > GUESSED_TITLE_CHARS ? `${short}…` : short) || "Untitled";
}

/** Throws FormatError `format.conversation` with place, found and allowed.
 * @param {unknown} value @param {string} place @returns {Exported} */
export function checkExported(value, place) {
  const { title, created, changed, turns } = members(value, place, ["title", "created", "changed", "turns"]);
  checkTitle(title, `${place}.title`);
  for (const [name, time] of Object.entries({ created, changed })) {
    if (typeof time !== "string" || Number.isNaN(Date.parse(time))) throw bad(`${place}.${name}`, time, "a time (ISO 8601)");
  }
  checkTurns(turns, `${place}.turns`);
  return { title, created, changed, turns };
}

/** Throws FormatError `format.conversation`. @param {unknown} title @param {string} place @returns {string} */
export function checkTitle(title, place) {
  const allowed = `a text of 1 to ${MAX_TITLE_CHARS} characters`;
  if (!isText(title) || title.trim() === "" || title.length > MAX_TITLE_CHARS) throw bad(place, title, allowed);
  return title;
}

/** Throws FormatError `format.conversation`. @param {unknown} turns @param {string} place @returns {KeptTurn[]} */
export function checkTurns(turns, place) {
  if (!Array.isArray(turns)) throw bad(place, turns, "a list");
  if (turns.length > MAX_TURNS) throw bad(place, `${turns.length} turns`, `at most ${MAX_TURNS}`);
  turns.forEach((turn, i) => checkTurn(turn, `${place}[${i}]`));
  return turns;
}

/** @param {unknown} turn @param {string} place */
function checkTurn(turn, place) {
  const { question, answered } = members(turn, place, ["question", "answered"]);
  if (!isText(question)) throw bad(`${place}.question`, question, "a text");
  const { name, result } = members(answered, `${place}.answered`, ["name", "result"]);
  if (!isText(name)) throw bad(`${place}.answered.name`, name, "a text");
  checkResult(result, `${place}.answered.result`);
}

/** @param {unknown} result @param {string} place */
function checkResult(result, place) {
  const fields = ["reason", "text", "reasoning_content", "tool_calls", "transcript"];
  const { reason, text, reasoning_content: thought, tool_calls: calls, transcript } = members(result, place, fields);
  if (!REASONS.includes(reason)) throw bad(`${place}.reason`, reason, REASONS.join(" | "));
  if (!isText(text)) throw bad(`${place}.text`, text, "a text");
  if (thought !== null && !isText(thought)) throw bad(`${place}.reasoning_content`, thought, "a text or null");
  checkCalls(calls, `${place}.tool_calls`);
  const run = checkTranscript(transcript, `${place}.transcript`);
  const said = { reason, text, reasoning_content: thought, tool_calls: calls };
  const recorded = { reason: run.reason, text: run.text, reasoning_content: run.reasoning, tool_calls: run.tool_calls };
  for (const [name, value] of Object.entries(said)) {
    const same = sorted(value) === sorted(/** @type {any} */ (recorded)[name]);
    if (!same) throw bad(`${place}.${name}`, value, "what its transcript says");
  }
}

/** @param {unknown} calls @param {string} place */
function checkCalls(calls, place) {
  if (!Array.isArray(calls)) throw bad(place, calls, "a list");
  calls.forEach((call, i) => {
    const names = call && Object.hasOwn(call, "name") ? ["name", "arguments"] : ["text", "error"];
    for (const [name, value] of Object.entries(members(call, `${place}[${i}]`, names))) {
      if (!isText(value)) throw bad(`${place}[${i}].${name}`, value, "a text");
    }
  });
}

/** What the page reads of a transcript; the engine checks the rest when it is asked to go on from it.
 * @param {unknown} transcript @param {string} place */
function checkTranscript(transcript, place) {
  if (typeof transcript !== "string") throw bad(place, transcript, "the text of a transcript");
  const run = parse(transcript, place);
  if (!isObject(run)) throw bad(place, run, "an object");
  if (run.version !== TRANSCRIPT_VERSION) throw bad(`${place}.version`, run.version, String(TRANSCRIPT_VERSION));
  if (!/^[0-9a-f]{64}$/.test(run.sha256)) throw bad(`${place}.sha256`, run.sha256, "64 hexadecimal digits");
  const { request, timings } = run;
  if (!isObject(request) || !isObject(request.params)) throw bad(`${place}.request`, request, "a request with params");
  /** @type {[string, any, (item: any) => boolean, string][]} */
  const lists = [
    ["request.messages", request.messages, isMessage, "a list of messages"],
    ["request.tools", request.tools, isText, "a list of texts"],
    ["request.continue_ids", request.continue_ids, isId, "a list of ids"],
    ["prompt_ids", run.prompt_ids, isId, "a list of ids"],
    ["generated_ids", run.generated_ids, isId, "a list of ids"],
    ["logit_digests", run.logit_digests, isText, "a list of digests"],
    ["timings.decode_ms", timings?.decode_ms, Number.isFinite, "a list of times"],
  ];
  for (const [name, list, is, allowed] of lists) {
    if (!Array.isArray(list) || !list.every((item) => is(item))) throw bad(`${place}.${name}`, list, allowed);
  }
  if (run.ledger !== null) checkLedger(run.ledger, `${place}.ledger`);
  return run;
}

/** @param {any} ledger @param {string} place */
function checkLedger(ledger, place) {
  const counts = [ledger?.prompt_tokens, ledger?.budget_tokens];
  const good = counts.every(Number.isSafeInteger) && Array.isArray(ledger.parts) && ledger.parts.every(isPart);
  if (!good) throw bad(place, ledger, "a ledger (docs/prompt.md)");
}

/** @param {any} part */
const isPart = (part) =>
  isText(part?.kind) &&
  isText(part.label) &&
  PART_STATES.includes(part.state) &&
  [part.tokens, part.offered_tokens].every(Number.isSafeInteger);

/** @param {unknown} id */
const isId = (id) => Number.isSafeInteger(id) && Number(id) >= 0;
/** @param {any} message */
const isMessage = (message) => isText(message?.role) && isText(message.content);
/** @param {unknown} value @returns {value is string} */
const isText = (value) => typeof value === "string" && value.isWellFormed();
/** @param {any} value @returns {value is Record<string, any>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** The members of an object that has these and no others.
 * @param {any} value @param {string} place @param {string[]} names @returns {Record<string, any>} */
export function members(value, place, names) {
  if (!isObject(value)) throw bad(place, value, "an object");
  const other = Object.keys(value).find((name) => !names.includes(name));
  if (other !== undefined) throw bad(`${place}.${other}`.slice(0, 200), value[other], names.join(" | "));
  const missing = names.find((name) => !Object.hasOwn(value, name));
  if (missing !== undefined) throw bad(`${place}.${missing}`, "nothing", "a value");
  return value;
}

/** JSON, of which everything can be read again. Throws FormatError `format.conversation`.
 * @param {string} text @param {string} place @returns {any} */
export function parse(text, place) {
  try {
    const value = JSON.parse(text);
    sorted(value); // which fails when it is nested too deeply
    return value;
  } catch (error) {
    throw bad(place, String(error instanceof Error ? error.message : error), "JSON");
  }
}

/** The same text for the same value: keys in order. @param {any} value @returns {string} */
const sorted = (value) =>
  JSON.stringify(value, (_, part) =>
    isObject(part) ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1))) : part,
  );

/** @param {string} place @param {unknown} found @param {string} allowed */
export function bad(place, found, allowed) {
  const shown = typeof found === "string" ? found : (JSON.stringify(found) ?? "nothing");
  const short = shown.length > 80 ? `${[...shown.slice(0, 79)].join("")}…` : shown;
  const message = `${place}: found ${short}; allowed: ${allowed}`;
  return new FormatError("format.conversation", message, { place, found: short, allowed });
}
