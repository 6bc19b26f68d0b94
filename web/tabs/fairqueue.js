// Fair queue: who is served next when several tabs wait for one model. Round robin by tab: the tabs take turns, each in
// its own order; a tab that begins to wait stands behind those that wait already, however much each of them wants.

/** @template {{tab: string}} T */
export class FairQueue {
  /** What waits, by tab; the first tab is served next. @type {Map<string, T[]>} */
  #tabs = new Map();

  /** @param {T} entry */
  push(entry) {
    const waiting = this.#tabs.get(entry.tab);
    if (waiting) waiting.push(entry);
    else this.#tabs.set(entry.tab, [entry]);
  }

  /** The next one, which waits no more; null when none does. @returns {T | null} */
  shift() {
    for (const [tab, [entry, ...rest]] of this.#tabs) {
      this.#tabs.delete(tab);
      if (rest.length > 0) this.#tabs.set(tab, rest); // behind all others
      return entry;
    }
    return null;
  }

  /** Takes out what `is` says yes to, and gives it. @param {(entry: T) => boolean} is @returns {T[]} */
  remove(is) {
    const removed = this.order().filter(is);
    for (const [tab, waiting] of this.#tabs) {
      const rest = waiting.filter((entry) => !removed.includes(entry));
      if (rest.length > 0) this.#tabs.set(tab, rest);
      else this.#tabs.delete(tab);
    }
    return removed;
  }

  /** All that waits, in the order in which it will be served if nothing more comes. @returns {T[]} */
  order() {
    const rows = [...this.#tabs.values()];
    const rounds = Math.max(0, ...rows.map((row) => row.length));
    return Array.from({ length: rounds }, (_, round) => rows.flatMap((row) => row.slice(round, round + 1))).flat();
  }
}
