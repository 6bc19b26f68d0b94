// A model's files, on the network and in storage: nobody gets one before its size and hash are verified.
//
// manifest.json is fetched from the network and compared with site.json, or, without one, taken from storage; it names
// every other file with its size and sha256. Those are looked up in storage by their hash first and fetched otherwise. Whatever its
// source, a file is read into memory of the recorded size and hashed. A stored file that is only begun goes on from
// there; one that is damaged is dropped and fetched, that one alone; a fetched file that is wrong is fetched once
// more; then `format.model_file`. Not being able to store a file is a warning. Of several tabs that want the same
// file one fetches it, and the others find it stored.

import { DeviceError, errorFrom, FormatError, InputError, LIMITS, MANIFEST, Slm2Error } from "./protocol.js";
import { download, unreachable } from "./store/download.js";
import { Draft } from "./store/draft.js";
import { Hasher, sha256Hex } from "./store/hash.js";
import { locked } from "./store/lock.js";
import { begin, complete, recordOf, sweep } from "./store/records.js";
import { openStore } from "./store/store.js";
import { fetchVerified } from "./verified.js";

/** @typedef {{file: string, bytes: number, sha256: string}} FileEntry */
/** @typedef {import("./site.js").Site} Site */
/** @typedef {import("./store/store.js").Store} Store */
/** Who hears of the bytes that arrive (`bytes` is negative when they turned out to be wrong; `stored`: they came
 * from storage) and of what went wrong without harm.
 * @typedef {{onBytes: (bytes: number, stored: boolean) => void, onWarning: (warning: Slm2Error) => void}} Listeners */

// For some 30 KB; after that the stored manifest, if there is one, has to do.
const MANIFEST_MS = 30_000;

/** The files of one model. */
export class ModelFiles {
  #model;
  #root;
  #models;
  #folder;
  #store;
  #listeners;
  #hasher = new Hasher();
  /** Of the manifest. */
  #url;
  #manifest = "";
  /** Files on their way, and what each will have taken of the storage in the end. @type {Map<Draft, number>} */
  #reserved = new Map();
  #isFull = false;

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
    const { store, refused: reason } = await openStore();
    if (store.kind === "memory") {
      listeners.onWarning(errorFrom("asset.no_storage", `model files: ${reason}`, { reason }));
    }
    return new ModelFiles(model, new URL(root), store, listeners);
  }

  /** @param {string} model @param {URL} root the site's @param {Store} store @param {Listeners} listeners */
  constructor(model, root, store, listeners) {
    this.#model = model;
    this.#root = root;
    this.#models = new URL("models/", root);
    this.#folder = new URL(`${model}/`, this.#models);
    this.#url = new URL("manifest.json", this.#folder);
    this.#store = store;
    this.#listeners = listeners;
  }

  /** The newest manifest that can be had, as bytes and as JSON of a format that we know: the server's, of the hash that
   * site.json has, or, when it does not answer, the stored one. Of a model that was put beside the site's own site.json
   * knows none.
   *
   * Throws InputError `input.model`, AssetError, FormatError `format.manifest`, ProtocolError `protocol.version`.
   * @param {Promise<Site>} ownSite which is on its way, as the manifest is
   * @returns {Promise<{bytes: Uint8Array<ArrayBuffer>, json: any}>} */
  async manifest(ownSite) {
    const fetched = await this.#fetchManifest();
    const site = await ownSite;
    const path = `models/${this.#model}/manifest.json`;
    const isOther = async () => path in site.files && (await sha256Hex(fetched.bytes)) !== site.files[path].sha256;
    const bytes = !fetched.isStored && (await isOther()) ? await fetchVerified(this.#root, site, path) : fetched.bytes;
    let json;
    try {
      this.#manifest = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
      json = JSON.parse(this.#manifest);
    } catch (error) {
      throw badManifest("manifest", String(error), "UTF-8 JSON");
    }
    if (json?.format !== MANIFEST.format || json.version !== MANIFEST.version) {
      const found = `${json?.format} version ${json?.version}`;
      throw badManifest("manifest.format", found, `${MANIFEST.format} version ${MANIFEST.version}`);
    }
    return { bytes, json };
  }

  /** Writes down that the manifest's files are being stored. Its reader has found nothing wrong with it. */
  async begin() {
    await this.#write("manifest.json", () => begin(this.#store, this.#url.href, this.#manifest));
  }

  /** Fills `into` with the file's bytes, of the recorded size and hash; stored for the next time.
   *
   * Throws AssetError, FormatError `format.model_file`; the signal's reason.
   * @template {Uint8Array} T @param {FileEntry} entry @param {T} into of `entry.bytes` bytes
   * @param {AbortSignal} [signal] @returns {Promise<T>} */
  async obtain(entry, into, signal) {
    const work = () => this.#obtain(entry, into, signal);
    await (this.#store.kind === "memory" ? work() : locked(entry.sha256, signal, work));
    return into;
  }

  /** Writes down which of the model's files are stored, all of them verified now; deletes what is stored for no model any
   * more: other versions of this one, models that this site has no longer, and the files that no stored manifest
   * names, of whichever site of this origin.
   * @param {FileEntry[]} entries @param {string[]} models the names of those that the site has */
  async tidy(entries, models) {
    await this.#write("manifest.json", () => complete(this.#store, this.#url.href, this.#manifest, entries));
    const own = [...models, this.#model].map((name) => new URL(`${name}/manifest.json`, this.#models).href);
    await sweep(this.#store, ({ url }) => url.startsWith(this.#models.href) && !own.includes(url));
  }

  /** @returns {Promise<{bytes: Uint8Array<ArrayBuffer>, isStored: boolean}>} */
  async #fetchManifest() {
    let bytes;
    try {
      const signal = AbortSignal.timeout(MANIFEST_MS);
      const response = await fetchOk(this.#url, { cache: "no-cache", signal });
      const body = response.arrayBuffer().catch((error) => {
        throw unreachable(this.#url.href, String(error));
      });
      bytes = new Uint8Array(await body);
    } catch (error) {
      const status = error instanceof Slm2Error ? error.detail.status : undefined;
      if (status === 404) {
        const detail = { model: this.#model, url: this.#url.href };
        throw new InputError("input.model", `${this.#url} does not exist`, detail);
      }
      const record = await recordOf(this.#store, this.#url.href).catch(() => null);
      if (!record) throw error;
      return { bytes: new TextEncoder().encode(record.manifest), isStored: true };
    }
    if (bytes.byteLength > LIMITS.manifest_bytes) {
      throw badManifest("manifest", `${bytes.byteLength} bytes`, `at most ${LIMITS.manifest_bytes}`);
    }
    return { bytes, isStored: false };
  }

  /** @param {FileEntry} entry @param {Uint8Array} into @param {AbortSignal} [signal] */
  async #obtain(entry, into, signal) {
    signal?.throwIfAborted();
    const { file, bytes, sha256 } = entry;
    const draft = await Draft.open(this.#store, sha256, (error) => this.#warnNotStored(entry, error));
    const count = new Count(this.#listeners.onBytes);
    try {
      const stored = draft.length;
      let had = Math.min(stored, bytes);
      let wrong = await draft.read(into.subarray(0, had), (n) => count.add(n, true));
      if (!wrong && stored > bytes) wrong = `${stored} bytes`;
      if (!wrong && stored === bytes) wrong = await this.#compare(entry, into);
      if (!wrong && stored === bytes) return;
      const restart = async () => {
        count.drop();
        had = 0;
        await draft.restart(null);
      };
      if (wrong) {
        this.#warnDamaged(entry, String(wrong));
        await restart();
      }
      await this.#reserve(entry, bytes - had, draft);
      for (const isLast of [false, true]) {
        const offered = await download(new URL(file, this.#folder), into, had, draft, {
          // Where we keep the file ourselves, a second copy in the HTTP cache would be waste.
          cache: this.#store.kind !== "memory" ? "no-store" : isLast ? "reload" : "default",
          signal,
          onBytes: (n) => count.add(n, false),
          onCut: (reason, had, waitMs) => this.#warnCut(entry, reason, had, waitMs),
        });
        const found = offered || (await this.#compare(entry, into));
        if (!found) return;
        if (had > 0 && !offered) this.#warnDamaged(entry, found);
        await restart();
        if (isLast) throw wrongFile(entry, found);
      }
    } finally {
      this.#reserved.delete(draft);
      await draft.close();
    }
  }

  /** "" or what hash the bytes have instead. @param {FileEntry} entry @param {Uint8Array} bytes */
  async #compare(entry, bytes) {
    const sha256 = await this.#hasher.hash(bytes);
    return sha256 === entry.sha256 ? "" : `sha256 ${sha256}`;
  }

  /** Sees to it that the storage has room for so many bytes more, and sets them aside; when it has none, the file is
   * not stored. @param {FileEntry} entry @param {number} bytes @param {Draft} draft */
  async #reserve(entry, bytes, draft) {
    if (this.#store.kind === "memory") return;
    this.#reserved.set(draft, draft.length + bytes);
    let { free, detail } = await this.#room();
    if (free < 0) {
      // Perhaps for files that nobody needs, or, at the end of the means, for another version of this model.
      await this.#write("old files", () => sweep(this.#store, () => false));
      ({ free, detail } = await this.#room());
    }
    if (free < 0) {
      const isOther = (/** @type {import("./store/records.js").Record_} */ { url, manifest }) =>
        url === this.#url.href && manifest !== this.#manifest;
      await this.#write("old files", () => sweep(this.#store, isOther));
      ({ free, detail } = await this.#room());
    }
    if (free >= 0) return;
    this.#reserved.delete(draft);
    this.#warnFull(entry, detail);
    await draft.drop();
  }

  /** Bytes that the storage has left, without those that are set aside; Infinity where the browser does not tell. */
  async #room() {
    const { usage, quota } = (await navigator.storage?.estimate?.().catch(() => null)) ?? {};
    if (usage === undefined || quota === undefined) return { free: Infinity, detail: {} };
    let free = quota - usage;
    for (const [draft, bytes] of this.#reserved) free -= Math.max(bytes - draft.length, 0);
    return { free, detail: { usage, quota } };
  }

  /** @param {string} file @param {() => Promise<void>} work */
  async #write(file, work) {
    try {
      await work();
    } catch (error) {
      this.#warnNotStored({ file, bytes: 0, sha256: "" }, error);
    }
  }

  /** @param {FileEntry} entry @param {unknown} error */
  #warnNotStored(entry, error) {
    if (error instanceof DOMException && error.name === "QuotaExceededError") {
      this.#warnFull(entry, { reason: String(error) });
      return;
    }
    this.#warn("asset.not_stored", `${entry.file}: ${error}`, { file: entry.file, reason: String(error) });
  }

  /** Once: files that find no room would all say the same. @param {FileEntry} entry
   * @param {Record<string, unknown>} detail */
  #warnFull({ file, bytes }, detail) {
    if (this.#isFull) return;
    this.#isFull = true;
    const found = detail.reason ?? `${detail.usage} of ${detail.quota} bytes are in use`;
    this.#warn("asset.no_room", `${file}, ${bytes} bytes, and perhaps others: ${found}`, { file, bytes, ...detail });
  }

  /** @param {FileEntry} entry @param {string} found */
  #warnDamaged({ file, bytes, sha256 }, found) {
    const allowed = { bytes, sha256 };
    const message = `${file}: found ${found}; allowed: ${bytes} bytes with sha256 ${sha256}`;
    this.#warn("asset.damaged", message, { file, found, allowed });
  }

  /** @param {FileEntry} entry @param {string} reason @param {number} had @param {number} wait_ms */
  #warnCut({ file, bytes }, reason, had, wait_ms) {
    const message = `${file}: ${reason}; it goes on at byte ${had} of ${bytes} in ${wait_ms / 1000} s`;
    this.#warn("asset.interrupted", message, { file, reason, had, bytes, wait_ms });
  }

  /** @param {string} code @param {string} message @param {Record<string, unknown>} detail */
  #warn(code, message, detail) {
    this.#listeners.onWarning(errorFrom(code, message, detail));
  }
}

/** What was told of a file's bytes, to be taken back when they turn out to be wrong. */
class Count {
  #told = { stored: 0, fetched: 0 };
  #onBytes;

  /** @param {Listeners["onBytes"]} onBytes */
  constructor(onBytes) {
    this.#onBytes = onBytes;
  }

  /** @param {number} bytes negative ones were for nothing, whichever they were @param {boolean} stored */
  add(bytes, stored) {
    if (bytes < 0) return this.drop();
    this.#told[stored ? "stored" : "fetched"] += bytes;
    this.#onBytes(bytes, stored);
  }

  drop() {
    const { stored, fetched } = this.#told;
    this.#told = { stored: 0, fetched: 0 };
    if (stored > 0) this.#onBytes(-stored, true);
    if (fetched > 0) this.#onBytes(-fetched, false);
  }
}

/** @param {FileEntry} entry @param {string} found */
const wrongFile = ({ file, bytes, sha256 }, found) =>
  new FormatError("format.model_file", `${file}: found ${found}; allowed: ${bytes} bytes with sha256 ${sha256}`, {
    file,
    found,
    allowed: { bytes, sha256 },
  });

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
async function fetchOk(url, options) {
  let response;
  try {
    response = await fetch(url, options);
  } catch (error) {
    throw unreachable(url.href, String(error));
  }
  if (!response.ok) throw unreachable(url.href, `HTTP status ${response.status}`, response.status);
  return response;
}
