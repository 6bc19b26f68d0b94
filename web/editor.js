// Editor: a message in place, to be changed and sent again. Enter sends, Shift+Enter starts a line, Escape leaves it.

import { button, isComposing, make } from "./dom.js";

/** The form that takes the place of `shown` until it is sent or left.
 * @param {HTMLElement} shown @param {string} text
 * @param {(text: string) => boolean} send whether it was taken @param {() => void} leave after Escape or Cancel */
export function editInPlace(shown, text, send, leave) {
  const field = make("textarea", { "aria-label": "Edit your message", rows: "1", dir: "auto", enterkeyhint: "send" });
  field.value = text;
  const close = () => {
    form.replaceWith(shown);
    leave();
  };
  const form = make(
    "form",
    { class: "editor" },
    field,
    make("p", { class: "aside" }, "What comes after this message is removed."),
    make("div", {}, make("button", { class: "primary" }, "Send again"), button("Cancel", close)),
  );
  const fit = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight}px`;
  };
  field.addEventListener("input", fit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!send(field.value)) field.focus();
  });
  form.addEventListener("keydown", (event) => {
    if (isComposing(event)) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && !event.shiftKey && event.target === field) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  shown.replaceWith(form);
  fit();
  field.focus();
}
