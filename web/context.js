// Context: how full the prompt of the last reply is, and what was left out of it, in words for people.
//
// The engine's ledger (docs/prompt.md) has a line for each part of a prompt. What the prompt holds is told as a sum for
// each kind; what was left out or cut, part by part, with the rule that chose it.

import { byId, count, make } from "./dom.js";

/** @typedef {import("./client.js").Ledger} Ledger */
/** @typedef {import("./client.js").Message} Message */

/** What a kind of part is called; `seams` is how many tokens more or fewer the parts are together than one by one.
 * @type {Record<string, string>} */
const KINDS = {
  policy: "Instructions",
  turn: "Your message",
  local_state: "What the page knows",
  evidence: "Evidence",
  history: "Conversation before",
  tools: "Tools",
  history_truncated: "Note that something is missing",
  frame: "The template’s own words",
  seams: "The template’s own words",
};

/** Why a part is not there or not whole, by the pass that chose it. @type {Record<number, string>} */
const PASSES = {
  1: "the oldest exchanges go first",
  2: "then the least relevant evidence",
  3: "then the rest of the conversation, for a note",
  4: "then the end of the evidence",
};
const STATES = { cut: "cut", dropped: "left out" };
const QUOTE_CHARACTERS = 60;

export class ContextMeter {
  #panel = byId("context", HTMLDetailsElement);
  #meter = byId("context-meter", HTMLMeterElement);
  #figures = byId("context-figures", HTMLElement);
  #parts = byId("context-parts", HTMLElement);

  /** Shows a prompt's ledger; says in a sentence what was left out, or "".
   * @param {Ledger} ledger @param {Message[]} messages that the prompt was made of */
  show({ prompt_tokens: tokens, budget_tokens: budget, parts }, messages) {
    const missing = parts.filter((/** @type {any} */ part) => part.state !== "kept");
    const words = `${tokens} of ${count(budget, "token")}`;
    const sum = missing.length > 0 ? `${count(missing.length, "part")} left out or cut` : "";
    this.#meter.max = budget;
    this.#meter.value = tokens;
    this.#meter.setAttribute("aria-valuetext", words);
    this.#figures.textContent = [words, sum].filter(Boolean).join(" · ");
    const lines = missing.map((/** @type {any} */ part) => missingLine(part, messages));
    this.#parts.replaceChildren(...lines, ...keptLines(parts));
    this.#panel.hidden = false;
    return sum && `To fit ${count(budget, "token")}, ${sum}.`;
  }

  /** No prompt, no meter. */
  clear() {
    this.#panel.hidden = true;
    this.#panel.open = false;
    this.#parts.replaceChildren();
  }
}

/** What each kind takes of the prompt. @param {any[]} parts */
function keptLines(parts) {
  /** @type {Map<string, number>} */
  const sums = new Map();
  for (const { kind, tokens } of parts) {
    const name = KINDS[kind] ?? kind;
    sums.set(name, (sums.get(name) ?? 0) + tokens);
  }
  return [...sums].filter(([, tokens]) => tokens !== 0).map(([name, tokens]) => line("", name, count(tokens, "token")));
}

/** A part that is not there, or not whole. @param {any} part @param {Message[]} messages */
function missingLine({ kind, label, tokens, offered_tokens: offered, state, in_pass: pass }, messages) {
  const what = kind === "history" ? quote(messages[parseInt(label)]?.content ?? "") : `${KINDS[kind]} ${quote(label)}`;
  const of = state === "cut" ? `${tokens} of ${count(offered, "token")} kept` : count(offered, "token");
  const how = `${STATES[/** @type {"cut" | "dropped"} */ (state)]}: ${PASSES[pass]}`;
  return line("missing", what, `${of}, ${how}`);
}

/** @param {string} text */
const quote = (text) => {
  const characters = [...text.replace(/\s+/g, " ").trim()];
  const short = characters.slice(0, QUOTE_CHARACTERS).join("").trimEnd();
  return `“${short}${characters.length > QUOTE_CHARACTERS ? "…" : ""}”`;
};

/** @param {string} name @param {string} what @param {string} figure */
const line = (name, what, figure) => make("li", { class: name }, make("span", {}, what), make("span", {}, figure));
