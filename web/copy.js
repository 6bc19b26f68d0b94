// Copy: texts to the clipboard, and a button for each block of code of a reply.

import { button, make } from "./dom.js";

const SHOWN_MS = 2000;

/** A button that copies, and says whether it did. @param {string} label @param {() => string} text
 * @param {string} [className] */
export function copyButton(label, text, className = "quiet") {
  const status = make("span", { role: "status", class: "copied" });
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text());
      status.textContent = "copied";
    } catch (error) {
      status.textContent = `not copied: ${error}`;
    }
    clearTimeout(timer);
    timer = setTimeout(() => (status.textContent = ""), SHOWN_MS);
  };
  return make("span", { class: "copy" }, button(label, () => void copy(), className), status);
}

/** Puts a button above each block of code. Its label is no text of the reply: the style shows it.
 * @param {HTMLElement} reply that is complete */
export function addCodeButtons(reply) {
  for (const code of reply.querySelectorAll("pre")) {
    if (code.previousElementSibling?.matches(".copy-code")) continue;
    const holder = copyButton("", () => code.textContent ?? "", "");
    holder.classList.add("copy-code");
    holder.querySelector("button")?.setAttribute("aria-label", "Copy code");
    code.before(holder);
  }
}
