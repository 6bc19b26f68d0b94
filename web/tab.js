// Tab: the conversation outlives a reload, not the tab. It is kept in sessionStorage, which no other tab and no
// later visit sees.

/** @typedef {import("./turn.js").Answered} Answered */

const STORAGE_KEY = "slm2-conversation";
const DRAFT_KEY = "slm2-draft";

/** Keeps the turns that count; without room, as many of the last ones as there is room for.
 * @param {{question: string, answered: Answered | null}[]} turns */
export function keep(turns) {
  const counting = turns.filter(({ answered }) => answered !== null);
  for (let first = 0; first <= counting.length; first += 1) {
    const last = counting.slice(first).map(({ question, answered }) => ({ question, answered }));
    try {
      sessionStorage.setItem(STORAGE_KEY, JSON.stringify(last));
      return;
    } catch {
      // Full, or there is no storage: then none has room.
    }
  }
}

/** What was kept, as far as it can be read; whoever shows it finds out whether it is what `keep` wrote.
 * @returns {{question: string, answered: Answered}[]} */
export function kept() {
  try {
    const list = JSON.parse(sessionStorage.getItem(STORAGE_KEY) ?? "[]");
    return Array.isArray(list) ? list.filter((turn) => typeof turn?.question === "string") : [];
  } catch {
    return [];
  }
}

/** Keeps a message that is not sent yet, for the page that is loaded next. @param {string} text */
export function keepDraft(text) {
  try {
    sessionStorage.setItem(DRAFT_KEY, text);
  } catch (error) {
    console.warn("the draft is not kept:", error);
  }
}

/** The draft that was kept, once; else no text. @returns {string} */
export function keptDraft() {
  try {
    const text = sessionStorage.getItem(DRAFT_KEY) ?? "";
    sessionStorage.removeItem(DRAFT_KEY);
    return text;
  } catch {
    return ""; // there is no storage
  }
}
