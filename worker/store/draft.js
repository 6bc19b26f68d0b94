// Draft: what is stored of one file while it is read or fetched. Storage may fail at any step; the file does not: it
// then comes from the network alone, and who opened the draft hears why, once.

/** @typedef {import("./store.js").Entry} Entry */
/** @typedef {import("./store.js").Store} Store */
/** @typedef {import("./store.js").Validator} Validator */

export class Draft {
  /** Bytes that are stored. */
  length = 0;
  /** @type {Validator} */
  validator = null;
  #store;
  #sha256;
  #onLost;
  /** @type {Entry | null} */
  #entry = null;

  /** The caller holds the file's lock. @param {Store} store @param {string} sha256
   * @param {(error: unknown) => void} onLost */
  static async open(store, sha256, onLost) {
    const draft = new Draft(store, sha256, onLost);
    await draft.#attempt(async () => {
      const entry = await store.open(sha256);
      draft.#entry = entry;
      draft.length = entry.length;
      draft.validator = entry.validator;
    });
    return draft;
  }

  /** @param {Store} store @param {string} sha256 @param {(error: unknown) => void} onLost */
  constructor(store, sha256, onLost) {
    this.#store = store;
    this.#sha256 = sha256;
    this.#onLost = onLost;
  }

  /** Fills `into`, which is not longer than what is stored. Gives why it could not; then there is no draft any more.
   * @param {Uint8Array} into @param {(bytes: number) => void} onBytes @returns {Promise<unknown>} */
  async read(into, onBytes) {
    try {
      await this.#entry?.read(into, onBytes);
      return null;
    } catch (error) {
      await this.restart(null);
      return error;
    }
  }

  /** Nothing is stored any more; what comes now was made from what `validator` names. @param {Validator} validator */
  async restart(validator) {
    this.length = 0;
    this.validator = validator;
    await this.#attempt(async () => this.#entry?.restart(validator));
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  async append(bytes) {
    await this.#attempt(async () => {
      await this.#entry?.append(bytes);
      this.length = this.#entry?.length ?? 0;
    });
  }

  /** Keeps what there is. */
  async close() {
    await this.#attempt(async () => this.#entry?.close());
    this.#entry = null;
  }

  /** Keeps nothing, and frees its room. */
  async drop() {
    const entry = this.#entry;
    this.#entry = null;
    this.length = 0;
    await entry?.restart(null).catch(() => {}); // it is removed all the same
    await entry?.close().catch(() => {});
    await this.#store.remove(this.#sha256).catch(() => {}); // what is left has no right length, or no right hash
  }

  /** @param {() => Promise<unknown>} step */
  async #attempt(step) {
    try {
      await step();
    } catch (error) {
      this.#onLost(error);
      await this.drop();
    }
  }
}
