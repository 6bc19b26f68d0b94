// Memory: the back end where a browser keeps nothing. A model's files lie in the model's own memory; a second copy
// here would double it and would not outlive the worker. So entries stay empty and records last as long as this does.

import { sha256Hex } from "./hash.js";

/** @typedef {import("./store.js").Entry} Entry */

export class MemoryStore {
  kind = /** @type {const} */ ("memory");
  /** @type {Map<string, string>} */
  #records = new Map();

  async files() {
    return /** @type {Map<string, number>} */ (new Map());
  }

  /** @returns {Promise<Entry>} */
  async open() {
    return {
      length: 0,
      validator: null,
      read: async () => {},
      restart: async () => {},
      append: async () => {},
      close: async () => {},
    };
  }

  async remove() {}

  async records() {
    return new Map(this.#records);
  }

  /** @param {string} text */
  async putRecord(text) {
    const sha256 = await sha256Hex(new TextEncoder().encode(text));
    this.#records.set(sha256, text);
    return sha256;
  }

  /** @param {string} sha256 */
  async removeRecord(sha256) {
    this.#records.delete(sha256);
  }
}
