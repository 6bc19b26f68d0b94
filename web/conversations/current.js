// Current: which conversation this tab shows, and its way into the store. The tab remembers it by its id.

import { newId } from "../ids.js";
import { checkTurns, guessTitle } from "./record.js";

/** @typedef {import("./record.js").Head} Head */
/** @typedef {import("./record.js").KeptTurn} KeptTurn */
/** @typedef {import("./store.js").Store} Store */

const KEY = "slm2-conversation";

export class Current {
  #store;
  /** @type {Head} */
  #head = blank();
  /** Writes come one after the other. @type {Promise<void>} */
  #writing = Promise.resolve();

  /** @param {Store} store */
  constructor(store) {
    this.#store = store;
  }

  get id() {
    return this.#head.id;
  }

  /** What `save` stores turns under. */
  get head() {
    return this.#head;
  }

  /** The turns that this tab showed before a reload, or none.
   *
   * Throws FormatError `format.conversation`, AssetError `asset.not_saved`. */
  async restore() {
    const id = remembered();
    return id === null ? [] : ((await this.open(id)) ?? []);
  }

  /** Takes a conversation of the store as the current one: gives its turns, or null when it isn't there any more.
   *
   * Throws as `restore`. @param {string} id @returns {Promise<KeptTurn[] | null>} */
  async open(id) {
    await this.#writing;
    const found = await this.#store.read(id);
    if (!found || found.head.deleted) return null;
    const turns = checkTurns(found.turns, found.head.title);
    this.#head = found.head;
    remember(id);
    return turns;
  }

  /** Begins a conversation, which is stored with its first reply. */
  begin() {
    this.#head = blank();
    remember(null);
  }

  /** Stores the turns that have a reply that counts. Without one nothing is stored, and what was stays.
   *
   * Throws AssetError `asset.not_saved`.
   * @param {readonly {question: string, answered: KeptTurn["answered"] | null}[]} turns
   * @param {Head} [head] of their conversation, which may not be the current one any more @returns {Promise<void>} */
  save(turns, head = this.#head) {
    const counting = turns.flatMap(({ question, answered }) => (answered ? [{ question, answered }] : []));
    if (counting.length === 0) return Promise.resolve();
    const saving = this.#writing.then(() => this.#write(head, counting));
    this.#writing = saving.catch(() => {}); // whoever saved hears of it
    return saving;
  }

  /** @param {Head} head that was the current one when it was asked for @param {KeptTurn[]} turns */
  async #write(head, turns) {
    if (!head.titled) head.title = guessTitle(turns[0].question);
    const next = { ...head, changed: new Date().toISOString(), n_turns: turns.length, revision: head.revision + 1 };
    if (!(await this.#store.write(next, turns))) {
      // Another tab has gone on from it, or removed it: both stay.
      next.id = newId();
      next.revision = 1;
      next.deleted = null;
      await this.#store.write(next, turns);
    }
    Object.assign(head, next);
    if (head === this.#head) remember(head.id);
  }
}

/** @returns {Head} */
function blank() {
  const now = new Date().toISOString();
  const id = newId();
  return { id, title: "", titled: false, created: now, changed: now, deleted: null, revision: 0, n_turns: 0 };
}

/** @param {string | null} id */
function remember(id) {
  try {
    if (id === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, id);
  } catch (error) {
    console.warn("a reload will begin a new conversation:", error);
  }
}

function remembered() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // there is no storage
  }
}
