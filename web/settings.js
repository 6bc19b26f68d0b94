// The settings drawer: sampling parameters, the form of the reply, the prompt's budget and its system prompt, checked as
// they are typed, kept in localStorage. An empty field is no setting: the model's own value counts.

import { RANGES } from "./client.js";
import { button, byId, make } from "./dom.js";

/** What is wrong with a text, or "" if nothing is. @typedef {(text: string) => string} Check */
/** `read`: a text as the parameter's value, by default a number. `choices`: of a field that is one of a few words,
 * value and label, `unset` the label of none. `needs`: what the model's template must know. `more`: rarely used. `isPage`:
 * about the page, no parameter.
 * @typedef {{name: string, label: string, hint: string, check?: Check, read?: (text: string) => any,
 *   lines?: number, mono?: boolean, placeholder?: string, choices?: readonly (readonly [string, string])[],
 *   unset?: string, needs?: string, more?: boolean, isPage?: boolean}} Field */
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

const MAX_STOPS = 16;
const MAX_STOP_BYTES = 1024;

/** @param {string} text */
const stopTexts = (text) => text.split("\n").filter((line) => line !== "");

/** @type {Check} */
function checkStops(text) {
  const stops = stopTexts(text);
  const long = stops.some((stop) => new TextEncoder().encode(stop).length > MAX_STOP_BYTES);
  return stops.length > MAX_STOPS || long ? `At most ${MAX_STOPS} lines, each of at most ${MAX_STOP_BYTES} bytes.` : "";
}

/** The pattern between slashes, or null. @param {string} text */
const patternIn = (text) => (/^\/.+\/$/s.test(text) ? text.slice(1, -1) : null);

/** Whether it is JSON, or may be a pattern; the engine says what of it can be enforced. @type {Check} */
function checkFormat(text) {
  if (patternIn(text) !== null) return "";
  if (text.startsWith("/")) return "A pattern stands between two slashes: /(yes|no)/.";
  try {
    const schema = JSON.parse(text);
    return typeof schema === "object" && schema !== null && !Array.isArray(schema) ? "" : "A schema is a JSON object.";
  } catch (error) {
    return `Neither a JSON schema nor /a pattern/: ${error instanceof Error ? error.message : error}.`;
  }
}

/** The schema's text goes as it is: numbers keep their spelling, and members their order. @param {string} text */
function readFormat(text) {
  const pattern = patternIn(text);
  if (pattern !== null) return { type: "regex", pattern };
  return `{"type":"json_schema","json_schema":{"schema":${text}}}`;
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
    read: (text) => text,
    placeholder: "a new one each time",
  },
  {
    name: "max_tokens",
    label: "Longest reply",
    hint: "In tokens; a token is about four characters of English.",
    check: inRange("max_tokens"),
  },
  {
    name: "enable_thinking",
    label: "Thinking",
    hint: "Whether the model thinks before it answers.",
    read: (text) => text === "true",
    choices: [
      ["true", "think first"],
      ["false", "answer at once"],
    ],
    needs: "thinking",
  },
  {
    name: "system",
    label: "System prompt",
    hint: "What the model is told before the conversation.",
    lines: 4,
  },
  {
    name: "response_format",
    label: "Form of the reply",
    hint: "A JSON schema, or a regular expression between slashes, such as /(yes|no)/: the reply can have no other form.",
    check: checkFormat,
    read: readFormat,
    lines: 4,
    mono: true,
    more: true,
  },
  {
    name: "stop",
    label: "Stop texts",
    hint: "The reply ends before any of them. One on each line.",
    check: checkStops,
    read: stopTexts,
    lines: 2,
    more: true,
  },
  {
    name: "min_p",
    label: "Min-p",
    hint: "Leaves out tokens that are less likely than this part of the likeliest. 0 is off.",
    check: inRange("min_p"),
    placeholder: "0",
    more: true,
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    hint: "Above 1, makes every token less likely that the conversation has already. 1 is off.",
    check: inRange("repetition_penalty"),
    placeholder: "1",
    more: true,
  },
  {
    name: "presence_penalty",
    label: "Presence penalty",
    hint: "Taken from each token that the reply has already. 0 is off.",
    check: inRange("presence_penalty"),
    placeholder: "0",
    more: true,
  },
  {
    name: "frequency_penalty",
    label: "Frequency penalty",
    hint: "The same, for each time that it has it. 0 is off.",
    check: inRange("frequency_penalty"),
    placeholder: "0",
    more: true,
  },
  {
    name: "profile",
    label: "Order of the filters",
    hint: "Whose order: they keep different tokens where temperature and top-p or min-p meet.",
    read: (text) => text,
    choices: [
      ["transformers", "transformers: temperature first"],
      ["llama.cpp", "llama.cpp: temperature last"],
    ],
    more: true,
  },
  {
    name: "budget_tokens",
    label: "Context budget",
    hint: "The most tokens of a prompt. Past it, the oldest exchanges are left out. Empty: all the room there is.",
    check: inRange("budget_tokens"),
    placeholder: "all the room there is",
    more: true,
  },
  {
    name: "max_reasoning_tokens",
    label: "Longest thought",
    hint: "In tokens; then the model has to answer. Empty: no bound of its own.",
    check: inRange("max_reasoning_tokens"),
    placeholder: "no bound",
    needs: "thinking",
    more: true,
  },
  {
    name: "preserve_thinking",
    label: "Earlier thoughts",
    hint: "Kept, they take room, and nothing that was read has to be read again.",
    read: (text) => text === "true",
    choices: [
      ["true", "keep them in the prompt"],
      ["false", "leave them out"],
    ],
    needs: "preserve_thinking",
    more: true,
  },
  {
    name: "invalid_utf8",
    label: "Broken text",
    hint: "What happens when the model writes bytes that are no text.",
    read: (text) => text,
    choices: [
      ["end", "ends the reply"],
      ["show", "is shown as bytes, such as \\xE2"],
    ],
    more: true,
  },
  {
    name: "share",
    label: "One model for all tabs",
    hint: "Tabs of this site use the model that one of them has loaded, in turn. Counts when the page is loaded again.",
    unset: "share it",
    choices: [["false", "load one for each tab"]],
    more: true,
    isPage: true,
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
    const more = make("details", { class: "more" }, make("summary", {}, "More"));
    for (const field of FIELDS) (field.more ? more : place).append(this.#build(field));
    place.append(more);
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
    const control = name && this.#entries.get(name)?.control;
    if (!control) return;
    const more = control.closest("details");
    if (more) more.open = true;
    control.focus();
  }

  /** Shows what the engine says of a setting at its field, which is wrong until it is changed; gives its name, or null
   * when it is none of them. @param {import("./client.js").InputError} error @returns {string | null} */
  refuse({ message, detail }) {
    const name = String(detail.place ?? "").replace(/^(params|options)\./, "").split(/[.[]/)[0];
    const entry = this.#entries.get(name);
    if (!entry || entry.control.value === "") return null;
    this.#mark(entry, message);
    return name;
  }

  /** The first field whose text is wrong, or null. @returns {string | null} */
  firstWrong() {
    for (const [name, { control }] of this.#entries) if (control.ariaInvalid === "true") return name;
    return null;
  }

  /** The parameters that are set, and a fresh seed if none is and chance has a say.
   * @returns {import("./client.js").ChatOptions} */
  params() {
    /** @type {Record<string, any>} */
    const params = {};
    for (const [name, { field, control }] of this.#entries) {
      const text = name === "stop" ? control.value : control.value.trim();
      if (name === "system" || field.isPage || text.trim() === "" || !this.#has(field)) continue;
      params[name] = (field.read ?? Number)(text);
    }
    if ((params.temperature ?? this.#defaults.temperature) !== 0) params.seed ??= freshSeed();
    return params;
  }

  /** Whether this tab shares its model with others. */
  get sharesModel() {
    return this.#entries.get("share")?.control.value !== "false";
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
      dir: "auto",
    };
    const { placeholder, ...unwritten } = shared;
    const own = field.unset ?? (field.needs ? "as the model does by itself" : "not set");
    const choices = [["", own], ...(field.choices ?? [])].map(([value, label]) => make("option", { value }, label));
    /** @type {Control} */
    const control = field.choices
      ? make("select", unwritten, ...choices)
      : field.lines
        ? make("textarea", { ...shared, rows: String(field.lines), spellcheck: String(!field.mono) })
        : make("input", { ...shared, type: "text", inputmode: "decimal", spellcheck: "false" });
    const wrong = make("p", { id: `${id}-wrong`, class: "wrong" });
    if (field.mono) control.classList.add("mono");
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
    const { field, control } = entry;
    if (control.value !== text) control.value = text;
    this.#mark(entry, text.trim() === "" ? "" : (field.check?.(text.trim()) ?? ""));
  }

  /** @param {{control: Control, wrong: HTMLElement}} entry @param {string} message or "" */
  #mark({ control, wrong }, message) {
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
