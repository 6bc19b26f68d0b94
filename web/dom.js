// Small tools for the page: elements by id and by recipe, figures as text.

/** The element with this id, which is of this class.
 * @template {Element} T @param {string} id @param {{new (): T}} type @returns {T} */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new Error(`index.html has no ${type.name} #${id}`);
  return element;
}

/** A new element with attributes and children; strings become text, never markup.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag @param {Record<string, string>} [attributes] @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]} */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** @param {string} label @param {() => void} onClick @param {string} [className] */
export function button(label, onClick, className = "") {
  const element = make("button", { type: "button", class: className }, label);
  element.addEventListener("click", onClick);
  return element;
}

/** Whether a key belongs to a word that an input method is still composing; WebKit tells by the key's code only.
 * @param {KeyboardEvent} event */
export const isComposing = (event) => event.isComposing || event.keyCode === 229;

/** @param {number} bytes */
export const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

/** @param {number} ms */
export const seconds = (ms) => `${(ms / 1000).toFixed(1)} s`;

/** @param {number} n @param {string} noun */
export const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

// When a file that is offered has surely been read: a busy browser begins late.
const READ_MS = 60_000;

/** Offers `text` as a file. @param {string} name @param {string} text */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = make("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), READ_MS);
}
