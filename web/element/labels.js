// Labels: every word that the element says by itself, in English, and how a page puts others in their place.

import { badInput } from "../request.js";
import { Slm2Error } from "../client.js";

/** @type {Record<string, string>} */
export const LABELS = {
  chat: "Chat",
  log: "Conversation",
  input: "Message",
  placeholder: "Ask something",
  send: "Send",
  stop: "Stop",
  reset: "New chat",
  retry: "Try again",
  user: "You",
  assistant: "Assistant",
  thought: "Thoughts",
  loading: "Getting the model ready",
  bytes: "{done} of {total} MB",
  starting: "Starting the model",
  ready: "The model is ready",
  queued: "Waits for its turn",
  reading: "Reads: {done} of {total} tokens",
  writing: "Writes",
  stopped: "Stopped",
  max_tokens: "Cut: longest reply reached",
  context_full: "Cut: the context is full",
  invalid_utf8: "Ended: the model wrote bytes that are no text",
  empty: "The reply has no text; it is not part of the conversation",
  failed: "The page itself has failed.",
};

/** The labels of an element: an object, or its JSON text, over the English ones. Beside those of LABELS a label may be
 * named as an error's code: then it is what is said in place of the code's meaning and remedy.
 *
 * Throws InputError `input.json`.
 * @param {unknown} given @returns {Record<string, string>} */
export function labelsOf(given) {
  if (given === null || given === undefined || given === "") return LABELS;
  const allowed = "an object of strings, or its JSON text";
  let labels = given;
  if (typeof given === "string") {
    try {
      labels = JSON.parse(given);
    } catch {
      throw badInput("input.json", "labels", given, allowed);
    }
  }
  if (typeof labels !== "object" || labels === null || Array.isArray(labels)) throw badInput("input.json", "labels", labels, allowed);
  for (const [name, text] of Object.entries(labels)) {
    if (!(name in LABELS) && !name.includes(".") && name !== "cancelled") {
      throw badInput("input.json", `labels.${name}`, text, Object.keys(LABELS).join(" | "));
    }
    if (typeof text !== "string") throw badInput("input.json", `labels.${name}`, text, "a string");
  }
  return { ...LABELS, .../** @type {Record<string, string>} */ (labels) };
}

/** An error in a sentence or two. @param {unknown} error @param {Record<string, string>} labels */
export function sentence(error, labels) {
  if (!(error instanceof Slm2Error)) return `${labels.failed} ${error}`;
  return Object.hasOwn(labels, error.code) ? labels[error.code] : `${error.meaning} ${error.remedy}`;
}

/** A label with its figures. @param {string} label @param {Record<string, string | number>} figures */
export const fill = (label, figures) =>
  label.replace(/\{(\w+)\}/g, (whole, name) => (name in figures ? String(figures[name]) : whole));
