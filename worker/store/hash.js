// Hash: SHA-256 as the browser computes it.

/** The SHA-256 of `bytes` in lower-case hexadecimal digits. @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Promise<string>} */
export async function sha256Hex(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Whether this is a hash as `sha256Hex` writes it. @param {string} text */
export const isHash = (text) => /^[0-9a-f]{64}$/.test(text);

/** Hashes bytes wherever they lie. The browser takes none that are shared, so those are copied first, into a buffer
 * that is as large as the largest file and used by one file at a time: its size is all that hashing takes. */
export class Hasher {
  /** @type {Uint8Array<ArrayBuffer>} */
  #copy = new Uint8Array(0);
  /** @type {Promise<unknown>} */
  #before = Promise.resolve();

  /** @param {Uint8Array} bytes @returns {Promise<string>} */
  hash(bytes) {
    if (bytes.buffer instanceof ArrayBuffer) return sha256Hex(/** @type {Uint8Array<ArrayBuffer>} */ (bytes));
    const result = this.#before.then(() => {
      if (this.#copy.length < bytes.length) this.#copy = new Uint8Array(bytes.length);
      const copy = this.#copy.subarray(0, bytes.length);
      copy.set(bytes);
      return sha256Hex(copy);
    });
    this.#before = result.catch(() => {});
    return result;
  }
}
