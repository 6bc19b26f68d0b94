// Download: a file's bytes from the network into memory, and into its draft as they come. A transfer that is cut
// goes on where it stopped.
//
//     had 0 -----> GET ----------------------------> 200  the whole
//     had n -----> GET, Range: bytes=n-, If-Range -> 206  the rest
//                                                 -> 200  the server has no ranges, or another file: the whole
//                                                 -> 416, or another part than was asked for: the whole is asked for
//     cut, 408, 429, 5xx, or STALL_MS without a byte: again from there, after a pause
//
// If-Range names the strong ETag that the first bytes came with. Where the server gave none, or the first bytes
// were sent compressed, Range is asked for alone: whoever calls compares the whole with its hash, and that decides.

import { AssetError } from "../protocol.js";

/** @typedef {import("./draft.js").Draft} Draft */
/** `onBytes` hears of bytes as they come, negative when they were for nothing; `onCut` of each pause before the
 * transfer goes on.
 * @typedef {{
 *   cache: RequestCache, signal?: AbortSignal, onBytes: (bytes: number) => void,
 *   onCut: (reason: string, had: number, waitMs: number) => void,
 * }} Options */

// A server that hands out nothing this often in a row is given up; and so is one that is cut without end.
const FAILURES = 5;
const ATTEMPTS = 64;
// Pauses: the first one, which doubles with every failure in a row, and the longest that a server may ask for.
const PAUSE_MS = 500;
const MAX_PAUSE_MS = 30_000;
const STALL_MS = 30_000;
const STALL_CHECK_MS = 2_000;

/** A transfer that may go on: the reason, and how long the server wants to be left alone. */
class Cut extends Error {
  /** @param {string} reason @param {number} [pauseMs] */
  constructor(reason, pauseMs = 0) {
    super(reason);
    this.pauseMs = pauseMs;
  }
}

/** Fills `into` from byte `had` on, and appends to `draft` what comes. Gives "" when `into` is full; else what the
 * server offers instead, a body of another length.
 *
 * Throws AssetError `asset.unreachable`, whose detail has `status` where the server answered; the signal's reason.
 * @param {URL} url @param {Uint8Array} into @param {number} had @param {Draft} draft @param {Options} options
 * @returns {Promise<string>} */
export async function download(url, into, had, draft, options) {
  let { validator } = draft;
  let failures = 0;
  for (let attempt = 1; ; attempt += 1) {
    const before = had;
    try {
      const transfer = await Transfer.begin(url, had, validator, into.length, options);
      if (transfer.found !== "") return transfer.found;
      if (transfer.from !== had) {
        options.onBytes(-had);
        had = 0;
      }
      if (had === 0) await draft.restart((validator = transfer.validator));
      for await (const bytes of transfer.chunks()) {
        if (had + bytes.length > into.length) return `more than ${into.length} bytes`;
        into.set(bytes, had);
        had += bytes.length;
        options.onBytes(bytes.length);
        await draft.append(bytes);
      }
      if (had === into.length) return "";
      throw new Cut(`the body ended after ${had} of ${into.length} bytes`);
    } catch (error) {
      options.signal?.throwIfAborted();
      if (!(error instanceof Cut)) throw error;
      failures = had > before ? 1 : failures + 1;
      if (failures >= FAILURES || attempt >= ATTEMPTS) {
        throw unreachable(url.href, `${error.message}, ${attempt} attempts`);
      }
      const pauseMs = Math.min(Math.max(PAUSE_MS * 2 ** (failures - 1), error.pauseMs), MAX_PAUSE_MS);
      options.onCut(error.message, had, pauseMs);
      await pause(pauseMs, options.signal);
    }
  }
}

/** One answer of the server. */
class Transfer {
  /** What is wrong with it, or "". */
  found = "";
  /** The byte that its body begins with. */
  from = 0;
  /** @type {string | null} */
  validator = null;
  #response;
  #watch;

  /** @param {URL} url @param {number} had @param {string | null} validator @param {number} total
   * @param {Options} options @returns {Promise<Transfer>} */
  static async begin(url, had, validator, total, options) {
    const watch = new Watch(options.signal);
    try {
      const headers = new Headers();
      if (had > 0) headers.set("Range", `bytes=${had}-`);
      if (had > 0 && validator !== null) headers.set("If-Range", validator);
      const { cache } = options;
      const response = await fetch(url, { cache, headers, signal: watch.signal }).catch((error) => {
        throw new Cut(watch.reason ?? String(error));
      });
      if (response.status === 416 && had > 0) {
        watch.end();
        return await Transfer.begin(url, 0, null, total, options);
      }
      if (!response.ok) {
        const { status } = response;
        if (status === 408 || status === 429 || status >= 500) {
          throw new Cut(`HTTP status ${status}`, 1000 * (Number(response.headers.get("Retry-After")) || 0));
        }
        throw unreachable(url.href, `HTTP status ${status}`, status);
      }
      const transfer = new Transfer(response, watch, had, total);
      const changed = validator !== null && transfer.validator !== null && validator !== transfer.validator;
      if (transfer.from !== 0 && (transfer.from !== had || changed)) {
        watch.end();
        if (had === 0) throw new Cut("a part came where the whole was asked for");
        return await Transfer.begin(url, 0, null, total, options);
      }
      if (transfer.found !== "") watch.end();
      return transfer;
    } catch (error) {
      watch.end();
      throw error;
    }
  }

  /** @param {Response} response @param {Watch} watch @param {number} had @param {number} total */
  constructor(response, watch, had, total) {
    this.#response = response;
    this.#watch = watch;
    const { headers } = response;
    // Another origin's encoding may not be read: its length may be that of what was sent.
    const isPacked = response.type !== "basic" || headers.get("Content-Encoding") !== null;
    const etag = headers.get("ETag") ?? "";
    this.validator = !isPacked && /^"[^"]*"$/.test(etag) ? etag : null;
    const length = isPacked ? null : headers.get("Content-Length");
    let announced = length === null ? total : Number(length);
    if (response.status === 206) {
      const [, first, all] = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get("Content-Range") ?? "") ?? [];
      // That of another origin may not be read: then the hash of the whole decides.
      this.from = first !== undefined ? Number(first) : headers.has("Content-Range") ? -1 : had;
      if (all !== undefined && all !== "*") announced = Number(all);
      else if (length !== null) announced += had;
    }
    if (announced > total) this.found = `more than ${total} bytes: ${announced} are announced`;
    else if (announced < total) this.found = `${announced} bytes announced`;
  }

  /** The body. Throws Cut when it breaks off. @returns {AsyncGenerator<Uint8Array<ArrayBuffer>, void>} */
  async *chunks() {
    const reader = this.#response.body?.getReader();
    try {
      while (reader) {
        const { done, value } = await reader.read().catch((error) => {
          throw new Cut(this.#watch.reason ?? `the connection broke: ${error}`);
        });
        if (done) return;
        this.#watch.seen();
        yield value;
      }
    } finally {
      this.#watch.end();
    }
  }
}

/** Ends a transfer of which nothing is heard any more, and with the caller's signal; `end` ends it too. */
class Watch {
  /** Why it was ended, if it was. @type {string | null} */
  reason = null;
  #abort = new AbortController();
  #last = performance.now();
  #outer;
  #timer;
  #end = () => this.end();

  /** @param {AbortSignal} [outer] */
  constructor(outer) {
    this.#outer = outer;
    outer?.addEventListener("abort", this.#end);
    this.#timer = setInterval(() => {
      if (performance.now() - this.#last < STALL_MS) return;
      this.reason = `nothing came for ${STALL_MS / 1000} s`;
      this.end();
    }, STALL_CHECK_MS);
    if (outer?.aborted) this.end();
  }

  get signal() {
    return this.#abort.signal;
  }

  seen() {
    this.#last = performance.now();
  }

  end() {
    clearInterval(this.#timer);
    this.#outer?.removeEventListener("abort", this.#end);
    this.#abort.abort();
  }
}

/** @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
  });
}

/** @param {string} url @param {string} reason @param {number} [status] */
export const unreachable = (url, reason, status) =>
  new AssetError("asset.unreachable", `${url}: ${reason}`, { url, reason, ...(status && { status }) });
