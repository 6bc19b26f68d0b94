// An error as people see it: what it means, what happened, what to do, and its code.

import { make } from "./dom.js";
import { Slm2Error } from "./client.js";

/** @param {unknown} error @param {Node[]} actions buttons that may help @returns {HTMLElement} */
export function errorCard(error, actions) {
  const known = error instanceof Slm2Error;
  const card = make("div", { class: "error", role: "alert" });
  card.append(
    make("h3", {}, known ? error.meaning : "The page itself has failed.", " ", make("code", {}, code(error))),
    make("p", { class: "said" }, known ? error.message : String(error)),
    make("p", {}, known ? error.remedy : "Reload the page; report a bug if it happens again."),
    make("div", { class: "actions" }, ...actions),
  );
  return card;
}

/** @param {unknown} error @returns {string} */
export const code = (error) => (error instanceof Slm2Error ? error.code : "page");
