// The settings drawer: sampling parameters, the prompt's budget and its system prompt, checked as they are typed, kept in
// localStorage. An empty field is no setting: the model's own value counts.

import { RANGES } from "./client.js";
import { button, byId, make } from "./dom.js";

/** What is wrong with a text, or "" if nothing is. @typedef {(text: string) => string} Check */
/** `choices`: of a field that is one of a few words, in the order of `true` and `false`.
 * @typedef {{name: string, label: string, hint: string, check: Check, multiline?: boolean,
 *   placeholder?: string, choices?: readonly [string, string], needs?: string}} Field */
/** @typedef {HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement} Control */

const STORAGE_KEY = "slm2-settings";

/** The check of a sampling parameter, as the sampler makes it. @param {string} name @returns {Check} */
function inRange(name) {
  const { low, high, whole, zero, above } = RANGES[name];
  const number = whole ? BigInt : Number;
  const digits = whole ? /^\d{1,20}$/ : /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;
  const from = above ? `A number above ${low}, at most` : `A ${whole ? "whole " : ""}number from ${low} to`;
  const allowed = `${zero ? "0, or a" : "A"}${from.slice(1)} ${high}.`;
  return (text) => {
    const value = digits.test(text) ? number(text) : null;
    const good = value !== null && (above ? value > number(low) : value >= number(low)) && value <= number(high);
    return good || (zero && value !== null && Number(value) === 0) ? "" : allowed;
  };
}

/** @type {readonly Field[]} */
const FIELDS = [
  {
    name: "temperature",
    label: "Temperature",
    hint: "How much say chance has. 0 always takes the likeliest token: the reply comes again without a seed.",
    check: inRange("temperature"),
  },
  {
    name: "top_p",
    label: "Top-p",
    hint: "Draws only from the likeliest tokens that together reach this probability. 1 is off.",
    check: inRange("top_p"),
  },
  {
    name: "top_k",
    label: "Top-k",
    hint: "Draws from at most this many of the likeliest tokens. 0 is off.",
    check: inRange("top_k"),
  },
  {
    name: "seed",
    label: "Seed",
    hint: "The same seed draws the same tokens again. Empty: a new one for every reply.",
    check: inRange("seed"),
    placeholder: "a new one each time",
  },
  {
    name: "max_tokens",
    label: "Longest reply",
    hint: "In tokens; a token is about four characters of English.",
    check: inRange("max_tokens"),
  },
  {
    name: "budget_tokens",
    label: "Context budget",
    hint: "The most tokens of a prompt. Past it, the oldest exchanges are left out. Empty: all the room there is.",
    check: inRange("budget_tokens"),
    placeholder: "all the room there is",
  },
  {
    name: "enable_thinking",
    label: "Thinking",
    hint: "Whether the model thinks before it answers.",
    check: () => "",
    choices: ["think first", "answer at once"],
    needs: "thinking",
  },
  {
    name: "preserve_thinking",
    label: "Earlier thoughts",
    hint: "Kept, they take room, and nothing that was read has to be read again.",
    check: () => "",
    choices: ["keep them in the prompt", "leave them out"],
    needs: "preserve_thinking",
  },
  {
    name: "system",
    label: "System prompt",
    hint: "What the model is told before the conversation.",
    check: () => "",
    multiline: true,
  },
];

export class Settings {
  #dialog = byId("settings", HTMLDialogElement);
  #note = byId("settings-note", HTMLElement);
  /** @type {Record<string, any>} */
  #defaults = {};
  /** What the model's template can do. @type {Record<string, boolean>} */
  #abilities = {};
  /** @type {Map<string, {field: Field, control: Control, wrong: HTMLElement, element: HTMLElement}>} */
  #entries = new Map();

  constructor() {
    const place = byId("setting-fields", HTMLElement);
    for (const field of FIELDS) place.append(this.#build(field));
    this.#restore();
    byId("open-settings", HTMLButtonElement).addEventListener("click", () => this.open());
    byId("reset-settings", HTMLButtonElement).addEventListener("click", () => {
      for (const name of this.#entries.keys()) this.#set(name, "");
    });
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  get isOpen() {
    return this.#dialog.open;
  }

  /** Opens the drawer, at a field if one is named. @param {string} [name] */
  open(name) {
    if (!this.#dialog.open) this.#dialog.showModal();
    if (name) this.#entries.get(name)?.control.focus();
  }

  /** The first field whose text is wrong, or null. @returns {string | null} */
  firstWrong() {
    for (const [name, { control }] of this.#entries) if (control.ariaInvalid === "true") return name;
    return null;
  }

  /** The parameters that are set, and a fresh seed if none is and chance has a say.
   * @returns {import("./client.js").ChatOptions} */
  params() {
    /** @type {Record<string, number | string | boolean>} */
    const params = {};
    for (const [name, { field, control }] of this.#entries) {
      const text = control.value.trim();
      if (name === "system" || text === "" || !this.#has(field)) continue;
      if (field.choices) params[name] = text === "true";
      else params[name] = name === "seed" ? text : Number(text);
    }
    if ((params.temperature ?? this.#defaults.temperature) !== 0) params.seed ??= freshSeed();
    return params;
  }

  /** The system prompt as a message, or none. @returns {import("./client.js").Message[]} */
  system() {
    const content = this.#entries.get("system")?.control.value ?? "";
    return content === "" ? [] : [{ role: "system", content }];
  }

  /** Shows the model's own values where nothing is set, and the settings that its template knows.
   * @param {Record<string, any>} defaults @param {Record<string, boolean>} abilities */
  showDefaults(defaults, abilities) {
    this.#defaults = defaults;
    this.#abilities = abilities;
    for (const [name, { field, control, element }] of this.#entries) {
      element.hidden = !this.#has(field);
      if (control instanceof HTMLSelectElement) continue;
      if (defaults[name] !== undefined && defaults[name] !== null) control.placeholder = String(defaults[name]);
    }
  }

  /** @param {Field} field */
  #has(field) {
    return field.needs === undefined || this.#abilities[field.needs] === true;
  }

  /** @param {Field} field */
  #build(field) {
    const id = `setting-${field.name}`;
    const shared = {
      id,
      name: field.name,
      autocomplete: "off",
      placeholder: field.placeholder ?? "",
      "aria-describedby": `${id}-hint ${id}-wrong`,
    };
    const { placeholder, ...unwritten } = shared;
    const choices = ["", "true", "false"].map((value, i) =>
      make("option", { value }, ["as the model does by itself", ...(field.choices ?? [])][i] ?? ""),
    );
    /** @type {Control} */
    const control = field.choices
      ? make("select", unwritten, ...choices)
      : field.multiline
        ? make("textarea", { ...shared, rows: "4" })
        : make("input", { ...shared, type: "text", inputmode: "decimal", spellcheck: "false" });
    const wrong = make("p", { id: `${id}-wrong`, class: "wrong" });
    control.addEventListener("input", () => this.#set(field.name, control.value));
    const row = make("div", { class: "row" }, control);
    if (field.name === "seed") row.append(button("New seed", () => this.#set("seed", freshSeed())));
    const element = make(
      "div",
      { class: "setting" },
      make("label", { for: id }, field.label, make("code", { "aria-hidden": "true" }, field.name)),
      row,
      make("p", { id: `${id}-hint`, class: "aside" }, field.hint),
      wrong,
    );
    element.hidden = field.needs !== undefined;
    this.#entries.set(field.name, { field, control, wrong, element });
    return element;
  }

  /** @param {string} name @param {string} text */
  #set(name, text) {
    this.#show(name, text);
    this.#save();
  }

  /** @param {string} name @param {string} text */
  #show(name, text) {
    const entry = this.#entries.get(name);
    if (!entry) return;
    const { field, control, wrong } = entry;
    if (control.value !== text) control.value = text;
    const message = field.multiline || text.trim() === "" ? "" : field.check(text.trim());
    control.ariaInvalid = String(message !== "");
    wrong.textContent = message;
  }

  #save() {
    const kept = Object.fromEntries(
      [...this.#entries]
        .filter(([, { control }]) => control.value !== "" && control.ariaInvalid !== "true")
        .map(([name, { control }]) => [name, control.value]),
    );
    try {
      localStorage.setItem(STORAGE_KEY, JSON.stringify(kept));
      this.#note.textContent = "";
    } catch (error) {
      this.#note.textContent = `This browser keeps no settings (${error}): they last until the page is closed.`;
    }
  }

  #restore() {
    try {
      const kept = JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "{}");
      for (const name of this.#entries.keys()) {
        if (typeof kept?.[name] === "string") this.#show(name, kept[name]);
      }
    } catch (error) {
      this.#note.textContent = `The settings that were kept could not be read (${error}).`;
    }
  }
}

/** A seed that nobody chose. */
const freshSeed = () => String(crypto.getRandomValues(new Uint32Array(1))[0]);
