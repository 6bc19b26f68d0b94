// A model's files, on the network and in storage: nobody gets one before its size and hash are verified.
//
// manifest.json is fetched from the network, or, without one, taken from storage; it names every other file with
// its size and sha256. Those are looked up in storage by their hash first and fetched otherwise. Whatever its
// source, a file is read into a buffer of the recorded size and hashed. A stored file that fails is dropped and
// fetched, that one alone; a fetched file that fails is fetched once more; then `format.model_file`. Not being
// able to store a file is a warning.

import { AssetError, DeviceError, FormatError, InputError, LIMITS, MANIFEST, Slm2Error } from "./protocol.js";

/** @typedef {{file: string, bytes: number, sha256: string}} FileEntry */
/** Who hears of the bytes that arrive (`bytes` is negative when they turned out to be wrong; `cached`: they came
 * from storage) and of the files that could not be stored.
 * @typedef {{onBytes: (bytes: number, cached: boolean) => void,
 *   onNotStored: (file: string, error: unknown) => void}} Listeners */

const STORE = "slm2-models";

/** The files of one model. */
export class ModelFiles {
  #model;
  #models;
  #folder;
  #store;
  #listeners;

  /** The files of a model that a message from the page names.
   *
   * Throws InputError `input.model`, DeviceError `device.insecure_context`.
   * @param {{root: string, model: string}} request @param {Listeners} listeners */
  static async open({ root, model }, listeners) {
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(model)) {
      throw new InputError("input.model", `model: found ${JSON.stringify(model)}; allowed: a plain name`, {
        model,
      });
    }
    if (!globalThis.crypto?.subtle) {
      throw new DeviceError(
        "device.insecure_context",
        `${self.location.origin} is not a secure context: the browser offers no SHA-256 to verify the model with`,
      );
    }
    return new ModelFiles(model, new URL("models/", root), await openStore(listeners), listeners);
  }

  /** @param {string} model @param {URL} models the site's folder of them @param {Cache | null} store
   * @param {Listeners} listeners */
  constructor(model, models, store, listeners) {
    this.#model = model;
    this.#models = models;
    this.#folder = new URL(`${model}/`, models);
    this.#store = store;
    this.#listeners = listeners;
  }

  /** The newest manifest that can be had, as bytes and as JSON of a format that we know: the server's, or, when it
   * does not answer, the stored one.
   *
   * Throws InputError `input.model`, AssetError, FormatError `format.manifest`.
   * @returns {Promise<{bytes: Uint8Array<ArrayBuffer>, json: any}>} */
  async manifest() {
    const url = new URL("manifest.json", this.#folder);
    const bytes = await this.#fetchManifest(url);
    let json;
    try {
      json = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    } catch (error) {
      throw badManifest("manifest", String(error), "UTF-8 JSON");
    }
    if (json?.format !== MANIFEST.format || json.version !== MANIFEST.version) {
      const found = `${json?.format} version ${json?.version}`;
      throw badManifest("manifest.format", found, `${MANIFEST.format} version ${MANIFEST.version}`);
    }
    if (this.#store) await this.#keep("manifest.json", url, new Response(bytes));
    return { bytes, json };
  }

  /** The file's bytes, of the recorded size and hash; stored for the next time.
   *
   * Throws AssetError, FormatError `format.model_file`.
   * @param {FileEntry} entry @param {AbortSignal} [signal] @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async obtain(entry, signal) {
    const stored = await this.#store?.match(storeKey(entry.sha256));
    if (stored) {
      const { bytes } = await this.#read(stored, entry, true);
      if (bytes) return bytes;
      await this.#store?.delete(storeKey(entry.sha256));
    }
    const url = new URL(entry.file, this.#folder);
    // Where we keep the file ourselves, a second copy in the HTTP cache would be waste.
    const first = { signal, cache: this.#store ? "no-store" : "default" };
    let found = "";
    for (const options of [first, { signal, cache: "reload" }]) {
      const result = await this.#read(await fetchOk(url, /** @type {RequestInit} */ (options)), entry, false);
      if (result.bytes) {
        const headers = { "Content-Type": "application/octet-stream", "Content-Length": `${entry.bytes}` };
        await this.#keep(entry.file, storeKey(entry.sha256), new Response(result.bytes, { headers }));
        return result.bytes;
      }
      found = result.found;
    }
    throw new FormatError(
      "format.model_file",
      `${entry.file}: found ${found}; allowed: ${entry.bytes} bytes with sha256 ${entry.sha256}`,
      { file: entry.file, found, allowed: { bytes: entry.bytes, sha256: entry.sha256 } },
    );
  }

  /** Deletes what is stored for no model any more: this site's manifests of models that it has no longer, and the
   * files that no stored manifest names, of whichever site of this origin. The files are listed before the
   * manifests are read, and a manifest is stored before its files: one that is being loaded meanwhile loses none.
   * @param {string[]} models the names of those that the site has */
  async tidy(models) {
    const store = this.#store;
    if (!store) return;
    const own = [...models, this.#model].map((name) => new URL(`${name}/manifest.json`, this.#models).href);
    const named = new Set();
    const files = [];
    for (const request of await store.keys()) {
      const isOfThisSite = request.url.startsWith(this.#models.href);
      if (request.url.startsWith(storeKey("").href)) files.push(request);
      else if (isOfThisSite && !own.includes(request.url)) await store.delete(request);
    }
    for (const request of await store.keys()) {
      // Another site's manifest may be of another version: whatever looks like a hash is one.
      const manifest = request.url.endsWith("/manifest.json") && (await (await store.match(request))?.text());
      for (const [hash] of (manifest || "").matchAll(/\b[0-9a-f]{64}\b/g)) named.add(storeKey(hash).href);
    }
    for (const request of files) if (!named.has(request.url)) await store.delete(request);
  }

  /** @param {URL} url @returns {Promise<Uint8Array<ArrayBuffer>>} */
  async #fetchManifest(url) {
    let response;
    try {
      response = await fetchOk(url, { cache: "no-cache" });
    } catch (error) {
      const status = error instanceof Slm2Error ? error.detail.status : undefined;
      if (status === 404) {
        throw new InputError("input.model", `${url} does not exist`, { model: this.#model, url: url.href });
      }
      response = await this.#store?.match(url);
      if (!response) throw error;
    }
    const bytes = new Uint8Array(await response.arrayBuffer().catch((e) => {
      throw unreachable(url.href, String(e));
    }));
    if (bytes.byteLength > LIMITS.manifest_bytes) {
      throw badManifest("manifest", `${bytes.byteLength} bytes`, `at most ${LIMITS.manifest_bytes}`);
    }
    return bytes;
  }

  /** The body, if it has the entry's size and hash; else what was found.
   * @param {Response} response @param {FileEntry} entry @param {boolean} cached
   * @returns {Promise<{bytes?: Uint8Array<ArrayBuffer>, found: string}>} */
  async #read(response, entry, cached) {
    const { onBytes } = this.#listeners;
    const bytes = new Uint8Array(entry.bytes);
    let length = 0;
    let found = "";
    const reader = response.body?.getReader();
    try {
      while (reader) {
        const { done, value } = await reader.read();
        if (done) break;
        if (length + value.byteLength > entry.bytes) {
          found = `more than ${entry.bytes} bytes`;
          await reader.cancel();
          break;
        }
        bytes.set(value, length);
        length += value.byteLength;
        onBytes(value.byteLength, cached);
      }
    } catch (error) {
      onBytes(-length, cached);
      if (!cached) throw unreachable(response.url, `the connection broke after ${length} bytes: ${error}`);
      return { found: `an unreadable stored file: ${error}` };
    }
    if (!found && length < entry.bytes) found = `${length} bytes`;
    if (!found) {
      const sha256 = hex(await crypto.subtle.digest("SHA-256", bytes));
      if (sha256 === entry.sha256) return { bytes, found: "" };
      found = `sha256 ${sha256}`;
    }
    onBytes(-length, cached);
    return { found };
  }

  /** @param {string} file @param {URL} key @param {Response} response */
  async #keep(file, key, response) {
    await this.#store?.put(key, response).catch((error) => this.#listeners.onNotStored(file, error));
  }
}

/** An entry of the manifest that names a file. @param {any} raw @param {string} place @param {number} maxBytes
 * @returns {FileEntry} */
export function fileEntry(raw, place, maxBytes) {
  const { file, sha256 } = raw ?? {};
  if (typeof file !== "string" || file.length > 200 || !/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(file)) {
    throw badManifest(`${place}.file`, show(file), "a plain file name");
  }
  if (typeof sha256 !== "string" || !/^[0-9a-f]{64}$/.test(sha256)) {
    throw badManifest(`${place}.sha256`, show(sha256), "64 lower-case hexadecimal digits");
  }
  return { file, bytes: integer(raw.bytes, `${place}.bytes`, maxBytes), sha256 };
}

/** @param {any} value @param {string} place @param {number} high @returns {number} */
export function integer(value, place, high) {
  if (!Number.isSafeInteger(value) || value < 1 || value > high) {
    throw badManifest(place, show(value), `an integer from 1 to ${high}`);
  }
  return value;
}

/** @param {string} place @param {string} found @param {string} allowed */
export const badManifest = (place, found, allowed) =>
  new FormatError("format.manifest", `${place}: found ${found}; allowed: ${allowed}`, {
    place,
    found,
    allowed,
  });

/** @param {any} value */
export const show = (value) => (JSON.stringify(value) ?? "nothing").slice(0, 80);

/** @param {URL} url @param {RequestInit} options @returns {Promise<Response>} */
export async function fetchOk(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    throw unreachable(url.href, String(error));
  }
  if (!response.ok) throw unreachable(url.href, `HTTP status ${response.status}`, response.status);
  return response;
}

/** The browser's store for models, or null where it has none (private windows of some browsers).
 * @param {Listeners} listeners */
async function openStore({ onNotStored }) {
  try {
    return await caches.open(STORE);
  } catch (error) {
    onNotStored("model files", error);
    return null;
  }
}

/** A stored file's address. It is its hash, so models and sites of one origin share equal files.
 * @param {string} sha256 */
const storeKey = (sha256) => new URL(`/slm2-models/sha256/${sha256}`, self.location.origin);

/** @param {ArrayBuffer} digest */
const hex = (digest) => Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");

/** @param {string} url @param {string} reason @param {number} [status] */
const unreachable = (url, reason, status) =>
  new AssetError("asset.unreachable", `${url}: ${reason}`, { url, reason, ...(status && { status }) });
