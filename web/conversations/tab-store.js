// Tab store: the conversations of a browser without IndexedDB. They outlive a reload as far as sessionStorage has room
// for them, and not the tab.

/** @typedef {import("./record.js").Head} Head */
/** @typedef {import("./record.js").KeptTurn} KeptTurn */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {{head: Head, turns: KeptTurn[]}} Entry */

const KEY = "slm2-conversations";

/** @implements {Store} */
export class TabStore {
  lasting = false;
  /** @type {Map<string, Entry>} */
  #entries;

  constructor() {
    this.#entries = new Map(kept().map((entry) => [entry.head.id, entry]));
  }

  async heads() {
    return [...this.#entries.values()].map(({ head }) => head);
  }

  /** @param {string} id */
  async read(id) {
    return this.#entries.get(id) ?? null;
  }

  /** @param {Head} head @param {KeptTurn[]} turns */
  async write(head, turns) {
    const there = this.#entries.get(head.id)?.head;
    if ((there?.revision ?? 0) !== head.revision - 1 || there?.deleted) return false;
    this.#entries.delete(head.id); // the newest is the last
    this.#entries.set(head.id, { head: there?.titled ? { ...head, title: there.title, titled: true } : head, turns });
    this.#keep();
    return true;
  }

  /** @param {string} id @param {import("./store.js").Change} change */
  async change(id, change) {
    const entry = this.#entries.get(id);
    if (entry) this.#entries.set(id, { ...entry, head: { ...entry.head, ...change } });
    this.#keep();
  }

  /** @param {string} id */
  async remove(id) {
    this.#entries.delete(id);
    this.#keep();
  }

  /** Keeps as many of the newest as there is room for. */
  #keep() {
    const entries = [...this.#entries.values()];
    for (let first = 0; first <= entries.length; first += 1) {
      try {
        sessionStorage.setItem(KEY, JSON.stringify(entries.slice(first)));
        return;
      } catch (error) {
        if (first === entries.length) console.warn("a reload will lose the conversations:", error);
      }
    }
  }
}

/** @returns {Entry[]} */
function kept() {
  try {
    const entries = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
    return Array.isArray(entries) ? entries.filter((entry) => typeof entry?.head?.id === "string") : [];
  } catch (error) {
    console.warn("the conversations of this tab can't be read:", error);
    return [];
  }
}
