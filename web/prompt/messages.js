// What a prompt may be: a string, or a list of messages of text. Checked as the Prompt API says, and put into the form
// in which slm.chat takes a conversation.

import { domError } from "./errors.js";

/** @typedef {{role: "system" | "user" | "assistant", content: string}} Turn */

const ROLES = ["system", "user", "assistant"];

/** The messages of `input`.
 *
 * Throws TypeError for what is no prompt, NotSupportedError for what is one but not of text, SyntaxError for a prefix
 * that is not at the end.
 * @param {unknown} input @param {boolean} mayBeginWithSystem @returns {Turn[]} */
export function messagesOf(input, mayBeginWithSystem) {
  if (!Array.isArray(input)) return [{ role: "user", content: String(input) }];
  return input.map((message, i) => {
    const place = `prompt[${i}]`;
    if (typeof message !== "object" || message === null) throw type(place, message, "an object with role and content");
    const { role, content, prefix = false } = message;
    if (!ROLES.includes(role)) throw type(`${place}.role`, role, ROLES.join(" | "));
    if (role === "system" && !(i === 0 && mayBeginWithSystem)) {
      throw type(`${place}.role`, role, "user | assistant; system stands first in a session, or not at all");
    }
    if (prefix) {
      if (role !== "assistant" || i !== input.length - 1) {
        throw domError("SyntaxError", `${place}.prefix: found true; allowed: with the last message, of an assistant`);
      }
      throw domError("NotSupportedError", `${place}.prefix: found true; a reply can't be begun by a text here`);
    }
    return { role, content: textOf(content, `${place}.content`) };
  });
}

/** @param {unknown} content @param {string} place */
function textOf(content, place) {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) throw type(place, content, "a string, or a list of {type, value}");
  return content
    .map((part, i) => {
      const at = `${place}[${i}]`;
      if (typeof part !== "object" || part === null) throw type(at, part, "{type, value}");
      if (["image", "audio", "tool-call", "tool-response"].includes(part.type)) {
        throw domError("NotSupportedError", `${at}.type: found ${part.type}; allowed: text`);
      }
      if (part.type !== "text") throw type(`${at}.type`, part.type, "text");
      if (typeof part.value !== "string") throw type(`${at}.value`, part.value, "a string");
      return part.value;
    })
    .join("");
}

/** The conversation with messages of the same role in a row as one, a blank line between them: models were trained on
 * turns. @param {Turn[]} messages @returns {Turn[]} */
export function joined(messages) {
  /** @type {Turn[]} */
  const turns = [];
  for (const { role, content } of messages) {
    const last = turns.at(-1);
    if (last?.role === role) last.content += `\n\n${content}`;
    else turns.push({ role, content });
  }
  return turns;
}

/** The constraint of a reply as slm.chat takes it; none for undefined.
 *
 * Throws TypeError for what is no constraint, NotSupportedError for flags.
 * @param {unknown} constraint */
export function formatOf(constraint) {
  if (constraint === undefined || constraint === null) return undefined;
  if (constraint instanceof RegExp) {
    const { source, flags } = constraint;
    if (/[^dguvy]/.test(flags)) throw domError("NotSupportedError", `responseConstraint: found the flags ${flags}; allowed: none`);
    return { type: "regex", pattern: source };
  }
  if (typeof constraint !== "object" || Array.isArray(constraint)) {
    throw type("responseConstraint", constraint, "a JSON schema, or a RegExp");
  }
  return { type: "json_schema", json_schema: { schema: constraint } };
}

/** @param {string} place @param {unknown} found @param {string} allowed */
export function type(place, found, allowed) {
  const text = typeof found === "string" ? JSON.stringify(found) : String(found);
  return new TypeError(`${place}: found ${text.slice(0, 80)}; allowed: ${allowed}`);
}
