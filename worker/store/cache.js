// Cache: the back end in the Cache API. A response is kept whole or not at all, so a file
// is kept in parts: a download that is cut has lost one part at most, and one that goes on adds to them.
//
//     /slm2-models/sha256/SHA256/FIRST-END     bytes FIRST to END - 1, with the ETag that they came with
//     /slm2-models/record/SHA256               a record

import { isHash, sha256Hex } from "./hash.js";

/** @typedef {import("./store.js").Entry} Entry */
/** @typedef {import("./store.js").Validator} Validator */
/** @typedef {{sha256: string, first: number, end: number, request: Request}} Part */

const PART_BYTES = 4 << 20;

export class CacheStore {
  kind = /** @type {const} */ ("cache");
  #cache;
  #base;

  /** Rejects where there is no Cache API, or not for this page. @param {string} name */
  static async open(name) {
    if (!globalThis.caches) throw new Error("this browser has no Cache API");
    return new CacheStore(await caches.open(name), new URL(`/${name}/`, self.location.origin).href);
  }

  /** @param {Cache} cache @param {string} base of every address */
  constructor(cache, base) {
    this.#cache = cache;
    this.#base = base;
  }

  async files() {
    /** @type {Map<string, Part[]>} */
    const bySha256 = new Map();
    for (const part of await this.#parts()) {
      const parts = bySha256.get(part.sha256) ?? [];
      bySha256.set(part.sha256, [...parts, part]);
    }
    return new Map([...bySha256].map(([sha256, parts]) => [sha256, chain(parts).at(-1)?.end ?? 0]));
  }

  /** @param {string} sha256 @returns {Promise<Entry>} */
  async open(sha256) {
    const own = (await this.#parts()).filter((part) => part.sha256 === sha256);
    const parts = chain(own);
    for (const { request } of own.filter((part) => !parts.includes(part))) await this.#cache.delete(request);
    const first = parts[0] && (await this.#cache.match(parts[0].request));
    return new CacheEntry(this.#cache, `${this.#base}sha256/${sha256}/`, parts, first?.headers.get("ETag") ?? null);
  }

  /** @param {string} sha256 */
  async remove(sha256) {
    for (const part of await this.#parts()) if (part.sha256 === sha256) await this.#cache.delete(part.request);
  }

  async records() {
    const records = new Map();
    for (const request of await this.#cache.keys()) {
      const name = request.url.slice(`${this.#base}record/`.length);
      if (!request.url.startsWith(`${this.#base}record/`) || !isHash(name)) continue;
      const bytes = new Uint8Array((await (await this.#cache.match(request))?.arrayBuffer()) ?? []);
      if ((await sha256Hex(bytes)) === name) records.set(name, new TextDecoder().decode(bytes));
      else await this.#cache.delete(request);
    }
    return records;
  }

  /** @param {string} text */
  async putRecord(text) {
    const bytes = new TextEncoder().encode(text);
    const sha256 = await sha256Hex(bytes);
    await this.#cache.put(`${this.#base}record/${sha256}`, new Response(bytes));
    return sha256;
  }

  /** @param {string} sha256 */
  async removeRecord(sha256) {
    await this.#cache.delete(`${this.#base}record/${sha256}`);
  }

  /** Every part of every file. @returns {Promise<Part[]>} */
  async #parts() {
    const parts = [];
    for (const request of await this.#cache.keys()) {
      const [, sha256, first, end] = /\/sha256\/([0-9a-f]{64})\/(\d+)-(\d+)$/.exec(request.url) ?? [];
      if (sha256) parts.push({ sha256, first: Number(first), end: Number(end), request });
    }
    return parts;
  }
}

/** @implements {Entry} */
class CacheEntry {
  #cache;
  #base;
  #parts;
  /** What is not yet a part. @type {Uint8Array<ArrayBuffer>} */
  #buffer = new Uint8Array(0);
  #buffered = 0;

  /** @param {Cache} cache @param {string} base @param {Part[]} parts one after the other @param {Validator} validator */
  constructor(cache, base, parts, validator) {
    this.#cache = cache;
    this.#base = base;
    this.#parts = parts;
    this.length = parts.at(-1)?.end ?? 0;
    this.validator = validator;
  }

  /** @param {Uint8Array} into @param {(bytes: number) => void} onBytes */
  async read(into, onBytes) {
    for (const { first, end, request } of this.#parts) {
      if (first >= into.length) return;
      const response = await this.#cache.match(request);
      const bytes = new Uint8Array((await response?.arrayBuffer()) ?? []);
      if (bytes.length !== end - first) throw new Error(`the part at byte ${first} has ${bytes.length} bytes`);
      const wanted = bytes.subarray(0, into.length - first);
      into.set(wanted, first);
      onBytes(wanted.length);
    }
  }

  /** @param {Validator} validator */
  async restart(validator) {
    for (const { request } of this.#parts) await this.#cache.delete(request);
    this.#parts = [];
    this.#buffered = this.length = 0;
    this.validator = validator;
  }

  /** @param {Uint8Array<ArrayBuffer>} bytes */
  async append(bytes) {
    if (this.#buffer.length === 0) this.#buffer = new Uint8Array(PART_BYTES);
    for (let at = 0; at < bytes.length; ) {
      const some = bytes.subarray(at, at + PART_BYTES - this.#buffered);
      this.#buffer.set(some, this.#buffered);
      this.#buffered += some.length;
      this.length += some.length;
      at += some.length;
      if (this.#buffered === PART_BYTES) await this.#flush();
    }
  }

  async close() {
    await this.#flush();
  }

  async #flush() {
    if (this.#buffered === 0) return;
    const [first, end] = [this.length - this.#buffered, this.length];
    const request = new Request(`${this.#base}${first}-${end}`);
    const headers = new Headers({ "Content-Type": "application/octet-stream" });
    if (this.validator !== null) headers.set("ETag", this.validator);
    await this.#cache.put(request, new Response(this.#buffer.slice(0, this.#buffered), { headers }));
    this.#parts.push({ sha256: "", first, end, request });
    this.#buffered = 0;
  }
}

/** The parts that follow each other from byte 0 on. @param {Part[]} parts @returns {Part[]} */
function chain(parts) {
  /** @type {Part[]} */
  const result = [];
  for (const part of parts.toSorted((a, b) => a.first - b.first || b.end - a.end)) {
    if (part.first === (result.at(-1)?.end ?? 0) && part.end > part.first) result.push(part);
  }
  return result;
}
