// One question and its reply, as the conversation shows them.

import { addCodeButtons, copyButton } from "./copy.js";
import { button, count, download, make } from "./dom.js";
import { editInPlace } from "./editor.js";
import { errorCard } from "./errors.js";
import { MarkdownView } from "./markdown-view.js";

/** @typedef {import("./client.js").Message} Message */
/** @typedef {import("./client.js").Result} Result */
/** @typedef {{name: string,
 *   result: Pick<Result, "reason" | "text" | "reasoning_content" | "tool_calls" | "transcript">}} Answered */
/** What can be asked for of a turn; `edit` says whether the new message was taken.
 * @typedef {{again: () => void, goOn: (from: Answered) => void, edit: (question: string) => boolean}} Requests */

// Why a reply ended, where it isn't simply complete.
/** @type {Record<string, string>} */
const ENDINGS = {
  stop_string: "ended by a stop text",
  max_tokens: "cut: longest reply reached",
  context_full: "cut: the context is full",
  cancelled: "stopped",
  invalid_utf8: "ended: the model wrote bytes that are no text",
  dead_end: "ended: no id that may come next is left",
};

// Of these a reply can go on from its ids.
const CUT = ["max_tokens", "cancelled"];

const SVG = "http://www.w3.org/2000/svg";

export class Turn {
  /** What the user said. */
  question;
  /** What the model said, when it counts; null while it runs and when it doesn't.
   * @type {string | null} */
  answer = null;
  /** What it thought before that; null when it didn't. @type {string | null} */
  thought = null;
  element;
  /** How it was answered, as `restore` takes it; null while it doesn't count. @type {Answered | null} */
  answered = null;
  /** The calls of tools that it made. @type {{name: string, arguments: string}[]} */
  calls = [];
  #reply;
  #said = make("div", { class: "text", dir: "auto" });
  #text = new MarkdownView(this.#said);
  #thought = document.createTextNode("");
  #thoughts = make("details", { class: "thought" }, make("summary", {}, "Thoughts"), make("p", { dir: "auto" }, this.#thought));
  #calls = make("div", { class: "calls" });
  #meta = make("div", { class: "meta" });
  #firstTokenAt = 0;
  /** Tokens of the reply that this one goes on from. */
  #before = 0;
  #name = "";
  #requests;

  /** @param {string} question @param {Requests} requests
   * @param {import("./transcript.js").Recorded | null} recorded a run that is made again, of which this is the
   *   question */
  constructor(question, requests, recorded = null) {
    this.question = question;
    this.recorded = recorded;
    this.#requests = requests;
    this.#reply = make("div", { class: "speech reply" });
    const asked = speech(recorded ? "Transcript" : "You", question);
    if (!recorded) this.#mayEdit(asked);
    this.element = make("article", { class: "turn" }, asked, this.#reply);
    this.note("waits for the model");
  }

  /** What a screen reader is told of the reply. */
  get spoken() {
    const called = this.calls.map((call) => ("name" in call ? `Calls ${call.name}.` : "A call that is none."));
    const said = [this.answer ?? "", ...called].filter(Boolean).join(" ");
    if (!said && this.answer !== null) return "The reply ended while the model was thinking.";
    return said || "The reply has no text; it is not part of the conversation.";
  }

  /** The turn as messages; none while it doesn't count. What the model's template has no place for is left out:
   * it was another model's.
   * @param {{thinking?: boolean, tools?: boolean}} template @returns {Message[]} */
  messages({ thinking, tools }) {
    if (this.answer === null) return [];
    const has = { answer: this.answer !== "", calls: this.calls.length > 0 && tools, thought: this.thought && thinking };
    if (!has.answer && !has.calls && !has.thought) return [];
    const thought = this.thought === null || !thinking ? {} : { reasoning_content: this.thought };
    const calls = this.calls.length === 0 || !tools ? {} : { tool_calls: this.calls };
    return [
      { role: "user", content: this.question },
      { role: "assistant", content: this.answer, ...thought, ...calls },
    ];
  }

  /** A line in place of, or below, the reply. @param {string} text */
  note(text) {
    this.#meta.replaceChildren(text);
    if (!this.#meta.isConnected) this.#reply.append(this.#meta);
  }

  /** The model begins. @param {string} name of who answers @param {Answered | null} [from] which it goes on from */
  begin(name, from = null) {
    this.#name = name;
    this.#before = from ? nTokensOf(JSON.parse(from.result.transcript)) : 0;
    this.answer = this.answered = this.thought = null;
    this.calls = [];
    this.#calls.replaceChildren();
    this.element.classList.remove("dropped");
    this.#text.text = this.#thought.data = "";
    this.#thoughts.hidden = true;
    this.#firstTokenAt = 0;
    this.#reply.ariaBusy = "true";
    this.#reply.replaceChildren(
      make("h2", { class: "speaker" }, name),
      this.#thoughts,
      this.#said,
      this.#calls,
      this.#meta,
    );
    this.note("begins to read");
  }

  /** @param {number} done @param {number} total */
  prefill(done, total) {
    this.note(`has read ${done} of ${count(total, "token")}`);
  }

  /** @param {string} delta @param {number} nTokens */
  append(delta, nTokens) {
    this.#text.append(delta);
    this.#firstTokenAt ||= performance.now();
    this.note(figures(this.#before + nTokens, this.#rate(nTokens)));
  }

  /** @param {string} delta of the thought @param {number} nTokens */
  think(delta, nTokens) {
    this.#thought.appendData(delta);
    this.#thoughts.hidden = false;
    this.#firstTokenAt ||= performance.now();
    this.note(`thinks · ${figures(this.#before + nTokens, this.#rate(nTokens))}`);
  }

  /** The turn as it was. @param {Answered} answered */
  restore({ name, result }) {
    this.begin(name);
    this.#thought.data = result.reasoning_content ?? "";
    this.#thoughts.hidden = this.#thought.data === "";
    this.#text.text = result.text;
    this.end(result);
  }

  /** The account of its prompt, and the messages that it was made of; null while there is none.
   * @returns {{ledger: import("./client.js").Ledger, messages: Message[]} | null} */
  get prompt() {
    const run = this.answered && JSON.parse(this.answered.result.transcript);
    return run?.ledger ? { ledger: run.ledger, messages: run.request.messages } : null;
  }

  /** The reply has ended. One without a text, a call and a thought doesn't count. @param {Answered["result"]} result */
  end({ reason, text, reasoning_content: thought, tool_calls, transcript }) {
    const run = JSON.parse(transcript);
    const nTokens = nTokensOf(run);
    const { decode_ms } = run.timings;
    const decodeMs = decode_ms.reduce((/** @type {number} */ sum, /** @type {number} */ ms) => sum + ms, 0);
    const rate = decodeMs > 0 ? (decode_ms.length * 1000) / decodeMs : 0;
    const result = { reason, text, reasoning_content: thought, tool_calls, transcript };
    const ended = { name: this.#name, result };
    const goOn = button("Continue", () => this.#requests.goOn(ended), "quiet last");
    const cut = CUT.includes(reason) && nTokens > 0 && !this.recorded ? [goOn] : [];
    this.#reply.ariaBusy = "false";
    this.#text.text = text;
    this.#calls.replaceChildren(...tool_calls.map(callView));
    this.calls = tool_calls.filter((call) => "name" in call);
    const isThoughtAlone = text === "" && this.calls.length === 0;
    if (isThoughtAlone && !thought) {
      this.drop(`${ENDINGS[reason] ?? "ended"} before the first word`);
      this.#meta.append(...cut);
      return;
    }
    this.answer = text;
    this.thought = thought;
    this.answered = ended;
    const { temperature, seed } = run.request.params;
    const parts = [figures(nTokens, rate), temperature === 0 ? "greedy" : `seed ${seed}`];
    if (ENDINGS[reason]) parts.push(ENDINGS[reason]);
    if (isThoughtAlone) parts.push("interrupted while thinking");
    this.#meta.replaceChildren(
      ...parts.map((part) => make("span", {}, part)),
      drawing(run.sha256),
      ...cut,
      button("Answer again", this.#requests.again, "quiet last again"),
      copyButton("Copy", () => text, "quiet copy-reply"),
      copyButton("Copy transcript", () => transcript),
      button("Save transcript", () => download(`slm2-${run.sha256.slice(0, 8)}.json`, transcript), "quiet"),
    );
    addCodeButtons(this.#said);
  }

  /** How a run that was made again compares, in words; it doesn't count. @param {string} difference or "" */
  judge(difference) {
    this.answer = this.answered = null;
    const verdict = difference ? `Differs from the transcript: ${difference}` : "As in the transcript, bit for bit";
    this.#meta.prepend(make("p", { class: difference ? "verdict wrong" : "verdict" }, verdict));
    return verdict;
  }

  /** It doesn't count. @param {string} why */
  drop(why) {
    this.answer = null;
    this.#reply.ariaBusy = "false";
    this.element.classList.add("dropped");
    this.note(`${why}; not part of the conversation`);
  }

  /** It failed; what it would have gone on from is there again.
   * @param {unknown} error @param {HTMLButtonElement[]} actions @param {Answered | null} [from] */
  fail(error, actions, from = null) {
    if (from) {
      this.restore(from);
      this.#reply.append(errorCard(error, actions));
      return;
    }
    this.answer = null;
    this.#reply.ariaBusy = "false";
    this.element.classList.add("dropped");
    this.#meta.remove();
    this.#reply.append(errorCard(error, actions));
  }

  /** Lets the question be changed where it stands. @param {HTMLElement} asked */
  #mayEdit(asked) {
    const shown = /** @type {HTMLElement} */ (asked.querySelector(".text"));
    const leave = () => {
      edit.hidden = false;
      edit.focus();
    };
    const open = () => {
      edit.hidden = true;
      editInPlace(shown, this.question, this.#requests.edit, leave);
    };
    const edit = button("Edit", open, "quiet edit");
    asked.classList.add("asked");
    asked.append(edit);
  }

  /** Tokens per second since the first one came; 0 while that says nothing. @param {number} nTokens */
  #rate(nTokens) {
    const ms = performance.now() - this.#firstTokenAt;
    return this.#firstTokenAt && nTokens > 1 && ms > 0 ? ((nTokens - 1) * 1000) / ms : 0;
  }
}

/** @param {string} who @param {string} text */
const speech = (who, text) =>
  make("div", { class: "speech" }, make("h2", { class: "speaker" }, who), make("div", { class: "text", dir: "auto" }, text));

/** A call of a tool, or what should have been one. @param {import("./client.js").ToolCall} call */
const callView = (call) =>
  "name" in call
    ? make("figure", { class: "call" }, caption("Calls ", make("code", {}, call.name)), make("pre", {}, call.arguments))
    : make("figure", { class: "call wrong" }, caption(`Wrote a call that is none: ${call.error}`), make("pre", {}, call.text));

/** @param {...(Node | string)} children */
const caption = (...children) => make("figcaption", {}, ...children);

/** All tokens of a reply, those before it went on too. @param {any} run */
const nTokensOf = ({ request, generated_ids }) => (request.continue_ids?.length ?? 0) + generated_ids.length;

/** @param {number} nTokens @param {number} rate */
const figures = (nTokens, rate) =>
  count(nTokens, "token") + (rate > 0 ? ` · ${rate < 10 ? rate.toFixed(1) : rate.toFixed(0)} tokens/s` : "");

/** A transcript's sha256 as a drawing: its first 24 digits as bars, the first 8 as text.
 * @param {string} sha256 @returns {HTMLElement} */
function drawing(sha256) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 95 16");
  svg.setAttribute("aria-hidden", "true");
  [...sha256.slice(0, 24)].forEach((digit, i) => {
    const height = parseInt(digit, 16) + 1;
    const bar = document.createElementNS(SVG, "rect");
    const box = { x: 4 * i, y: 16 - height, width: 3, height };
    for (const [name, value] of Object.entries(box)) bar.setAttribute(name, String(value));
    svg.append(bar);
  });
  const title = "Fingerprint of request, tokens and logits: the same wherever the same run is made";
  const name = make("span", { class: "unseen" }, "fingerprint ");
  return make("span", { class: "print", title }, svg, name, sha256.slice(0, 8));
}
