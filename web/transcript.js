// Transcript: a saved run, read and compared with the same run made here. docs/transcript.md describes the file.

import { FormatError } from "./client.js";

/** What is read of the file; the engine checks the request.
 * @typedef {{request: Record<string, any>, version: number, generated_ids: number[], logit_digests: string[],
 *   reason: string}} Recorded */

const VERSION = 2;
const MAX_BYTES = 64 << 20;
// What must come again, in the order in which a difference tells most; of `artifacts` all but the package's version.
const STEPS = ["logit_digests", "generated_ids"];
const BEFORE = ["artifacts", "request", "prompt_ids", "ledger"];
const COMPARED = [...BEFORE, ...STEPS, "reason", "detail", "reasoning", "text", "tool_calls", "sha256"];

/** Throws FormatError `format.transcript`. @param {File} file @returns {Promise<Recorded>} */
export async function readTranscript(file) {
  if (file.size > MAX_BYTES) throw bad(file, `${file.size} bytes`, `at most ${MAX_BYTES}`);
  let run;
  try {
    run = JSON.parse(await file.text());
    canonical(run); // which fails when it is nested too deeply
  } catch (error) {
    throw bad(file, String(error), "JSON");
  }
  const { request, prompt_ids, generated_ids, logit_digests } = run ?? {};
  const lists = [request?.messages, request?.tools, request?.continue_ids, prompt_ids, generated_ids, logit_digests];
  if (run?.version !== VERSION || !lists.every(Array.isArray)) {
    throw bad(file, "something else", `a transcript of version ${VERSION} of a reply to messages`);
  }
  return run;
}

/** What a recorded run asked: messages and options, as `chat` takes them. @param {Recorded} recorded */
export function recordedRequest({ request }) {
  const { messages, tools, enable_thinking, local_state, params, max_seq_len, ...rest } = request;
  const given = { enable_thinking, local_state, ...(tools.length > 0 && { tools: `[${tools.join(",")}]` }) };
  const options = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null));
  return { messages, params: { ...params, ...rest, ...options } };
}

/** Where a run first differs from the recorded one, or "". A recorded run that was stopped says nothing about
 * what comes after. @param {Record<string, any>} recorded @param {Record<string, any>} found */
export function difference(recorded, found) {
  const nSteps = recorded.generated_ids.length;
  const stopped = recorded.reason === "cancelled";
  for (const key of stopped ? COMPARED.slice(0, COMPARED.indexOf("reason")) : COMPARED) {
    let [a, b] = [recorded[key], found[key]];
    if (key === "artifacts") [a, b] = [a, b].map((artifacts) => ({ ...artifacts, package: "" }));
    if (STEPS.includes(key)) {
      if (stopped) b = b.slice(0, nSteps);
      const step = Array.from({ length: Math.max(a.length, b.length) }, (_, i) => i).find((i) => a[i] !== b[i]);
      if (step !== undefined) return `${key}[${step}]`;
    } else if (canonical(a) !== canonical(b)) {
      return key;
    }
  }
  return "";
}

/** The same text for the same value: keys in order. @param {any} value @returns {string} */
function canonical(value) {
  return JSON.stringify(value, (_, part) =>
    typeof part === "object" && part !== null && !Array.isArray(part)
      ? Object.fromEntries(Object.entries(part).sort(([a], [b]) => (a < b ? -1 : 1)))
      : part,
  );
}

/** @param {File} file @param {string} found @param {string} allowed */
const bad = (file, found, allowed) =>
  new FormatError("format.transcript", `${file.name}: found ${found}; allowed: ${allowed}`, { found, allowed });
