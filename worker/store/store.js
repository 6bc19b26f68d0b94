// Store: where verified files outlive a visit, by their sha256, so that models, versions and sites of one origin
// share equal ones. In the Cache API, else nothing but memory. Not in OPFS: in Chromium 156 a worker that wrote through
// synchronous handles while it fetched lost answers for good, in every second load of a private window.
//
// Theory of operation. A back end keeps two kinds of things. Files, under their hash: an entry that is shorter than
// the file is its beginning, which a download goes on from; whether an entry is whole and right is for its reader to
// find out by length and hash, each time. And records, one for each version of a model's manifest, under the hash of
// their own text: a half-written one is none. Nothing is replaced in place, so nothing has to be repaired. Whoever
// opens an entry holds the lock of its hash (lock.js).

import { CacheStore } from "./cache.js";
import { MemoryStore } from "./memory.js";

/** What an entry was made from, by the server's strong ETag; null where it gave none.
 * @typedef {string | null} Validator */
/** A file, or its beginning. `read` fills `into`, which is not longer than the entry, and says each time how many
 * bytes more it has; `restart` empties the entry; `append` adds to its end. Each may fail as storage does.
 * @typedef {{
 *   length: number,
 *   validator: Validator,
 *   read: (into: Uint8Array, onBytes: (bytes: number) => void) => Promise<void>,
 *   restart: (validator: Validator) => Promise<void>,
 *   append: (bytes: Uint8Array<ArrayBuffer>) => Promise<void>,
 *   close: () => Promise<void>,
 * }} Entry */
/** `files` gives each entry's length, in bytes, by its hash; `records` each record's text by its hash, and removes those
 * that are not what their name says: whoever asks for records, or writes them, holds their lock (records.js).
 * @typedef {{
 *   kind: "cache" | "memory",
 *   files: () => Promise<Map<string, number>>,
 *   open: (sha256: string) => Promise<Entry>,
 *   remove: (sha256: string) => Promise<void>,
 *   records: () => Promise<Map<string, string>>,
 *   putRecord: (text: string) => Promise<string>,
 *   removeRecord: (sha256: string) => Promise<void>,
 * }} Store */

/** The folder, the cache, and the beginning of every address. */
export const NAME = "slm2-models";

/** The store that this worker can write to, and why it keeps nothing, or "".
 * @returns {Promise<{store: Store, refused: string}>} */
export async function openStore() {
  try {
    return { store: await CacheStore.open(NAME), refused: "" };
  } catch (error) {
    return { store: new MemoryStore(), refused: String(error) };
  }
}

/** The store that can be read here, in a page too; null where nothing is kept.
 * @returns {Promise<Store | null>} */
export const readableStore = () => CacheStore.open(NAME).catch(() => null);
