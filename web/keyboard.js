// Keyboard: what keys do, and the map of them, which is made from the same list.
//
// With Alt a letter is no text, so these keys work in the field too; on a Mac it is, a letter of many languages or an accent,
// so there they work outside of fields. They are told by their place on the keyboard, as Alt changes what they write. `?`
// works outside of fields, and can be turned off, as speech input may say it.

import { byId, isComposing, make } from "./dom.js";

/** A key with Alt, by its `code`, as it is written, what it does.
 * @typedef {{code: string, key: string, label: string, run: () => void}} Shortcut */

const STORAGE_KEY = "slm2-question-mark";
const ALT_WRITES = /^(Mac|iP)/.test(navigator.platform);
/** Keys that other files listen to. @type {readonly (readonly [string, string])[]} */
const OTHERS = [
  ["Enter", "sends the message"],
  ["Shift + Enter", "starts a new line"],
  ["Esc", "stops the reply; closes a dialog"],
  ["↑ in an empty field", "edits your last message"],
  ["Tab, Shift + Tab", "goes to the next control, or back"],
];

export class Keyboard {
  #dialog = byId("keyboard", HTMLDialogElement);
  #single = byId("question-mark", HTMLInputElement);
  #shortcuts;

  /** @param {readonly Shortcut[]} shortcuts */
  constructor(shortcuts) {
    this.#shortcuts = [...shortcuts, { code: "Slash", key: "/", label: "shows this map", run: () => this.open() }];
    const rows = [...OTHERS, ...this.#shortcuts.map(({ key, label }) => /** @type {const} */ ([`Alt + ${key}`, label]))];
    const list = rows.map(([key, label]) => make("div", {}, make("dt", {}, make("kbd", {}, key)), make("dd", {}, label)));
    byId("keys", HTMLElement).replaceChildren(...list);
    this.#single.checked = readSingle();
    this.#single.addEventListener("change", () => keepSingle(this.#single.checked));
    byId("open-keyboard", HTMLButtonElement).addEventListener("click", () => this.open());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  open() {
    if (!this.#dialog.open) this.#dialog.showModal();
  }

  /** @param {KeyboardEvent} event */
  #press(event) {
    if (isComposing(event) || event.ctrlKey || event.metaKey || document.querySelector("dialog[open]")) return;
    const isQuestion = event.key === "?" && !event.altKey && this.#single.checked && !isWriting(event.target);
    const shortcut = this.#shortcuts.find((each) => event.altKey && !event.shiftKey && each.code === event.code);
    if (shortcut && ALT_WRITES && isWriting(event.target)) return;
    if (!isQuestion && !shortcut) return;
    event.preventDefault();
    if (shortcut) shortcut.run();
    else this.open();
  }
}

/** @param {EventTarget | null} target */
const isWriting = (target) => target instanceof Element && target.matches("input, textarea, select, [contenteditable]");

function readSingle() {
  try {
    return localStorage.getItem(STORAGE_KEY) !== "off";
  } catch {
    return true; // nothing is kept here
  }
}

/** @param {boolean} on */
function keepSingle(on) {
  try {
    localStorage.setItem(STORAGE_KEY, on ? "on" : "off");
  } catch (error) {
    console.warn("this browser keeps no settings:", error);
  }
}
