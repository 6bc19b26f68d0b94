// One question and its reply, as the element shows them.

import { make } from "../dom.js";
import { code } from "../errors.js";
import { sentence } from "./labels.js";

/** @typedef {import("../client.js").Message} Message */
/** @typedef {import("../client.js").Result} Result */
/** @typedef {import("../markdown-view.js").MarkdownView} MarkdownView */

// Why a reply ended, where it isn't simply complete: the label that says so.
/** @type {Partial<Record<Result["reason"], string>>} */
const ENDINGS = {
  max_tokens: "max_tokens",
  context_full: "context_full",
  cancelled: "stopped",
  invalid_utf8: "invalid_utf8",
};

export class Turn {
  /** @type {string | null} What counts of the reply; null while it runs, and when it doesn't. */
  answer = null;
  question;
  /** The question's and the reply's elements. */
  elements;
  #labels;
  #reply;
  #text = make("div", { class: "text", part: "text" });
  #thought = document.createTextNode("");
  #thoughts;
  #meta = make("p", { class: "meta", part: "meta" });
  /** @type {MarkdownView | null} */
  #view = null;

  /** @param {string} question @param {Record<string, string>} labels */
  constructor(question, labels) {
    this.question = question;
    this.#labels = labels;
    this.#thoughts = make("details", { part: "thought" }, make("summary", {}, labels.thought), this.#thought);
    this.#thoughts.hidden = true;
    this.#reply = make(
      "div",
      { class: "message assistant", part: "message assistant", "aria-busy": "true" },
      make("span", { class: "unseen" }, `${labels.assistant}: `),
      this.#thoughts,
      this.#text,
      this.#meta,
    );
    const who = make("span", { class: "unseen" }, `${labels.user}: `);
    const asked = make("div", { class: "message user", part: "message user" }, who, question);
    this.elements = [asked, this.#reply];
  }

  /** @returns {Message[]} */
  get messages() {
    if (this.answer === null) return [];
    return [
      { role: "user", content: this.question },
      { role: "assistant", content: this.answer },
    ];
  }

  /** A line below the reply, or none. @param {string} text */
  note(text) {
    this.#meta.textContent = text;
    this.#meta.hidden = text === "";
  }

  /** @param {typeof import("../markdown-view.js").MarkdownView} View */
  begin(View) {
    this.#view = new View(this.#text);
  }

  /** @param {string} delta */
  append(delta) {
    this.note("");
    this.#view?.append(delta);
  }

  /** @param {string} delta */
  think(delta) {
    this.#thought.appendData(delta);
    this.#thoughts.hidden = false;
  }

  /** @param {Result} result */
  end({ reason, text }) {
    this.#reply.ariaBusy = "false";
    if (this.#view) this.#view.text = text;
    const why = ENDINGS[reason] ? this.#labels[ENDINGS[reason]] : "";
    if (text === "") return this.drop(why || this.#labels.empty);
    this.answer = text;
    this.note(why);
  }

  /** It doesn't count. @param {string} why */
  drop(why) {
    this.#reply.ariaBusy = "false";
    this.#reply.classList.add("dropped");
    this.#view?.flush();
    this.note(why);
  }

  /** It failed. @param {unknown} error @param {HTMLElement[]} actions */
  fail(error, actions) {
    this.drop("");
    this.#reply.classList.add("failed");
    this.#reply.append(errorCard(error, this.#labels, actions));
  }
}

/** An error as the element shows it. @param {unknown} error @param {Record<string, string>} labels
 * @param {HTMLElement[]} actions */
export function errorCard(error, labels, actions) {
  const said = error instanceof Error && code(error) !== "page" ? error.message : "";
  return make(
    "div",
    { class: "error", part: "error", role: "alert" },
    make("p", {}, sentence(error, labels)),
    ...(said ? [make("p", { class: "said" }, said)] : []),
    make("p", {}, make("code", {}, code(error))),
    ...actions,
  );
}
