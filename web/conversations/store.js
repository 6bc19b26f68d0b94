// Store: where conversations are kept. IndexedDB where there is one, else this tab.
//
// What the list shows of a conversation (its head) and its turns are two records, so that a list needs no transcript.
// Tabs share the database. A conversation that two tabs have open is written by the one that is first: `write` says
// which revision it goes on from, and a writer that comes late gets `false` and keeps its own elsewhere (current.js).

import { AssetError } from "../client.js";
import { TabStore } from "./tab-store.js";

/** @typedef {import("./record.js").Head} Head */
/** @typedef {import("./record.js").KeptTurn} KeptTurn */
/** What a head may change to without its turns. @typedef {Partial<Pick<Head, "title" | "titled" | "deleted">>} Change */
/**
 * @typedef {object} Store
 * @property {boolean} lasting whether it outlives the tab
 * @property {() => Promise<Head[]>} heads in no order
 * @property {(id: string) => Promise<{head: Head, turns: unknown} | null>} read
 * @property {(head: Head, turns: KeptTurn[]) => Promise<boolean>} write of revision `head.revision`, which has to be the
 *   next one; false, and nothing is written, when it isn't
 * @property {(id: string, change: Change) => Promise<void>} change
 * @property {(id: string) => Promise<void>} remove
 */

const DATABASE = "slm2-conversations";
const VERSION = 1;
const [HEADS, TURNS] = ["heads", "turns"];
// A database that does not open in this time is none: another tab may hold an older version of it.
const OPEN_MS = 3000;

/** The store. `why` is an AssetError `asset.not_saved` when it is only the tab's.
 * @returns {Promise<{store: Store, why: AssetError | null}>} */
export async function openStore() {
  try {
    return { store: new DatabaseStore(await open()), why: null };
  } catch (error) {
    return { store: new TabStore(), why: notSaved(error) };
  }
}

/** @param {unknown} error */
function notSaved(error) {
  const reason = error instanceof Error || error instanceof DOMException ? `${error.name}: ${error.message}` : String(error);
  return new AssetError("asset.not_saved", `conversations: ${reason}`, { reason });
}

/** @returns {Promise<IDBDatabase>} */
function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, VERSION);
    const timer = setTimeout(() => reject(new Error(`the database did not open in ${OPEN_MS} ms`)), OPEN_MS);
    request.onupgradeneeded = () => {
      for (const name of [HEADS, TURNS]) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      clearTimeout(timer);
      request.result.onversionchange = () => request.result.close();
      resolve(request.result);
    };
  });
}

/** @implements {Store} */
class DatabaseStore {
  lasting = true;
  #database;

  /** @param {IDBDatabase} database */
  constructor(database) {
    this.#database = database;
  }

  heads() {
    return this.#run("readonly", (heads) => heads.getAll());
  }

  /** @param {string} id */
  async read(id) {
    /** @type {IDBRequest | undefined} */
    let turns;
    const head = await this.#run("readonly", (heads, bodies) => {
      turns = bodies.get(id);
      return heads.get(id);
    });
    return head ? { head, turns: turns?.result?.turns } : null;
  }

  /** @param {Head} head @param {KeptTurn[]} turns */
  async write(head, turns) {
    let written = false;
    await this.#run("readwrite", (heads, bodies) => {
      const request = heads.get(head.id);
      request.onsuccess = () => {
        const there = request.result;
        if ((there?.revision ?? 0) !== head.revision - 1 || there?.deleted) return;
        // A name that was given meanwhile stays.
        heads.put(there?.titled ? { ...head, title: there.title, titled: true } : head);
        bodies.put({ id: head.id, turns });
        written = true;
      };
      return request;
    });
    return written;
  }

  /** @param {string} id @param {Change} change */
  async change(id, change) {
    await this.#run("readwrite", (heads) => {
      const request = heads.get(id);
      request.onsuccess = () => {
        if (request.result) heads.put({ ...request.result, ...change });
      };
      return request;
    });
  }

  /** @param {string} id */
  async remove(id) {
    await this.#run("readwrite", (heads, bodies) => {
      bodies.delete(id);
      return heads.delete(id);
    });
  }

  /** Runs one transaction, and gives the result of the request that `work` gives once all is done.
   * @param {IDBTransactionMode} mode @param {(heads: IDBObjectStore, bodies: IDBObjectStore) => IDBRequest} work
   * @returns {Promise<any>} */
  #run(mode, work) {
    return new Promise((resolve, reject) => {
      const refuse = (/** @type {unknown} */ error) => reject(notSaved(error));
      try {
        const transaction = this.#database.transaction([HEADS, TURNS], mode);
        const request = work(transaction.objectStore(HEADS), transaction.objectStore(TURNS));
        transaction.oncomplete = () => resolve(request.result);
        transaction.onabort = () => refuse(transaction.error);
      } catch (error) {
        refuse(error);
      }
    });
  }
}
