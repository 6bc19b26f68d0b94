// Tab: the conversation outlives a reload, not the tab. It is kept in sessionStorage, which no other tab and no
// later visit sees.

/** @typedef {import("./turn.js").Answered} Answered */

const STORAGE_KEY = "slm2-conversation";

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
