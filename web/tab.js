// Tab: a message that is not sent yet outlives a reload. It is kept in sessionStorage, which no other tab and no later
// visit sees.

const DRAFT_KEY = "slm2-draft";

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
