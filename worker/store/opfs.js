// OPFS: the back end in the origin's private file system. Files are written where they stay, chunk by chunk as they
// arrive, through a handle that only one worker can hold.
//
//     slm2-models/files/SHA256          a file, or its beginning
//     slm2-models/files/SHA256.etag     what a beginning was made from
//     slm2-models/records/SHA256        a record
//
// A page reads and removes; only a worker writes, as only workers have the handle.

import { isHash, sha256Hex } from "./hash.js";

/** @typedef {import("./store.js").Entry} Entry */
/** @typedef {import("./store.js").Validator} Validator */
/** The part of a FileSystemSyncAccessHandle that is used; old browsers answer some of it with promises.
 * @typedef {{
 *   read: (into: Uint8Array, options: {at: number}) => number,
 *   write: (bytes: Uint8Array, options: {at: number}) => number,
 *   getSize: () => number | Promise<number>, truncate: (bytes: number) => void | Promise<void>,
 *   flush: () => void | Promise<void>, close: () => void | Promise<void>,
 * }} Handle */

// Read at once: large enough to be fast, small enough to show progress.
const READ_BYTES = 4 << 20;

export class OpfsStore {
  kind = /** @type {const} */ ("opfs");
  #files;
  #records;

  /** The store, to be read. Rejects where there is no OPFS, or not for this page. @param {string} name */
  static async open(name) {
    if (!navigator.storage?.getDirectory) throw new Error("this browser has no file system for origins");
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle(name, { create: true });
    const files = await folder.getDirectoryHandle("files", { create: true });
    return new OpfsStore(files, await folder.getDirectoryHandle("records", { create: true }));
  }

  /** The store, when a file can really be written. @param {string} name */
  static async openForWriting(name) {
    const store = await OpfsStore.open(name);
    try {
      await (await handleOf(store.#records, "probe")).close();
      await store.#records.removeEntry("probe");
    } catch (error) {
      // Another worker tries at this moment: it can be done.
      if (!isNamed(error, "NoModificationAllowedError", "NotFoundError")) throw error;
    }
    return store;
  }

  /** @param {FileSystemDirectoryHandle} files @param {FileSystemDirectoryHandle} records */
  constructor(files, records) {
    this.#files = files;
    this.#records = records;
  }

  async files() {
    const lengths = new Map();
    for await (const [name, handle] of this.#files.entries()) {
      if (!isHash(name) || handle.kind !== "file") continue;
      const file = await unlessGone(/** @type {FileSystemFileHandle} */ (handle).getFile());
      if (file) lengths.set(name, file.size);
    }
    return lengths;
  }

  /** @param {string} sha256 @returns {Promise<Entry>} */
  async open(sha256) {
    const handle = await handleOf(this.#files, sha256);
    try {
      const length = await handle.getSize();
      const note = await unlessGone(this.#files.getFileHandle(`${sha256}.etag`));
      const validator = note ? await (await note.getFile()).text() : null;
      return new OpfsEntry(this.#files, sha256, handle, length, validator || null);
    } catch (error) {
      await handle.close();
      throw error;
    }
  }

  /** @param {string} sha256 */
  async remove(sha256) {
    await unlessGone(this.#files.removeEntry(sha256));
    await unlessGone(this.#files.removeEntry(`${sha256}.etag`));
  }

  async records() {
    const records = new Map();
    for await (const [name, handle] of this.#records.entries()) {
      if (!isHash(name) || handle.kind !== "file") continue;
      const file = await unlessGone(/** @type {FileSystemFileHandle} */ (handle).getFile());
      const bytes = file && new Uint8Array(await file.arrayBuffer());
      if (bytes && (await sha256Hex(bytes)) === name) records.set(name, new TextDecoder().decode(bytes));
      else await this.removeRecord(name);
    }
    return records;
  }

  /** @param {string} text */
  async putRecord(text) {
    const bytes = new TextEncoder().encode(text);
    const sha256 = await sha256Hex(bytes);
    await write(this.#records, sha256, bytes);
    return sha256;
  }

  /** @param {string} sha256 */
  async removeRecord(sha256) {
    await unlessGone(this.#records.removeEntry(sha256));
  }
}

/** @implements {Entry} */
class OpfsEntry {
  #folder;
  #name;
  #handle;

  /** @param {FileSystemDirectoryHandle} folder @param {string} name @param {Handle} handle @param {number} length
   * @param {Validator} validator */
  constructor(folder, name, handle, length, validator) {
    this.#folder = folder;
    this.#name = name;
    this.#handle = handle;
    this.length = length;
    this.validator = validator;
  }

  /** @param {Uint8Array} into @param {(bytes: number) => void} onBytes */
  async read(into, onBytes) {
    for (let at = 0; at < into.length; ) {
      const read = this.#handle.read(into.subarray(at, at + READ_BYTES), { at });
      if (read === 0) throw new Error(`the entry ends at byte ${at}`);
      at += read;
      onBytes(read);
    }
  }

  /** @param {Validator} validator */
  async restart(validator) {
    await this.#handle.truncate(0);
    this.length = 0;
    if (validator !== null) await write(this.#folder, `${this.#name}.etag`, new TextEncoder().encode(validator));
    else if (this.validator !== null) await unlessGone(this.#folder.removeEntry(`${this.#name}.etag`));
    this.validator = validator;
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  async append(bytes) {
    const written = this.#handle.write(bytes, { at: this.length });
    if (written !== bytes.length) {
      throw new DOMException(`${written} of ${bytes.length} bytes were written`, "QuotaExceededError");
    }
    this.length += written;
  }

  async close() {
    try {
      await this.#handle.flush();
    } finally {
      await this.#handle.close();
    }
  }
}

/** The one writer of a file, which is made when there is none.
 * @param {FileSystemDirectoryHandle} folder @param {string} name @returns {Promise<Handle>} */
async function handleOf(folder, name) {
  const file = /** @type {any} */ (await folder.getFileHandle(name, { create: true }));
  return file.createSyncAccessHandle();
}

/** Writes a small file. @param {FileSystemDirectoryHandle} folder @param {string} name
 * @param {Uint8Array<ArrayBuffer>} bytes */
async function write(folder, name, bytes) {
  const handle = await handleOf(folder, name);
  try {
    await handle.truncate(0);
    const written = handle.write(bytes, { at: 0 });
    if (written !== bytes.length) throw new DOMException("there is no room for a record", "QuotaExceededError");
    await handle.flush();
  } finally {
    await handle.close();
  }
}

/** What is asked of a file that another tab may have removed meanwhile. @template T @param {Promise<T>} asked
 * @returns {Promise<T | null>} */
const unlessGone = (asked) =>
  asked.catch((error) => {
    if (isNamed(error, "NotFoundError")) return null;
    throw error;
  });

/** @param {unknown} error @param {string[]} names */
const isNamed = (error, ...names) => error instanceof DOMException && names.includes(error.name);
