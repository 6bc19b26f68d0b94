// The Prompt API's errors for ours: a DOMException, or a TypeError, whose `cause` is the Slm2Error with its code.

import { Slm2Error } from "../client.js";

/** Names of DOMExceptions by the beginning of a code; the first that fits. What the caller gave wrong, and isn't
 * here, is a TypeError.
 * @type {[string, string][]} */
const NAMES = [
  ["cancelled", "AbortError"],
  ["input.budget", "QuotaExceededError"],
  ["input.response_format", "NotSupportedError"],
  ["input.model", "NotSupportedError"],
  ["input.", "TypeError"],
  ["template.", "NotSupportedError"],
  ["format.unsupported", "NotSupportedError"],
  ["asset.", "NetworkError"],
  ["", "OperationError"],
];

/** @param {string} name @param {string} message @param {unknown} [cause] */
export function domError(name, message, cause) {
  const error = name === "TypeError" ? new TypeError(message) : new DOMException(message, name);
  return withFields(error, { cause });
}

/** More tokens than there is room for. @param {number} requested @param {number} quota @param {unknown} [cause] */
export function quotaError(requested, quota, cause) {
  const message = `the prompt has ${requested} tokens; allowed: ${quota}`;
  const { QuotaExceededError: Own } = /** @type {any} */ (globalThis);
  if (typeof Own === "function") return withFields(new Own(message, { requested, quota }), { cause });
  return withFields(new DOMException(message, "QuotaExceededError"), { requested, quota, cause });
}

/** Any error as the Prompt API has it. @param {unknown} error */
export function translate(error) {
  if (!(error instanceof Slm2Error)) return error;
  if (error.code === "input.budget") {
    const { prompt_tokens, budget_tokens } = error.detail;
    if (Number.isFinite(prompt_tokens) && Number.isFinite(budget_tokens)) return quotaError(prompt_tokens, budget_tokens, error);
  }
  const name = NAMES.find(([start]) => error.code.startsWith(start))?.[1] ?? "OperationError";
  return domError(name, error.message, error);
}

/** @template {Error} E @param {E} error @param {Record<string, unknown>} fields @returns {E} */
function withFields(error, fields) {
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined) Object.defineProperty(error, name, { value, configurable: true, writable: true });
  }
  return error;
}
