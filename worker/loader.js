// Loader: a worker that fetches a model's files and hands them, verified, to the engine's worker.
//
// Theory of operation. manifest.json is fetched from the network, or, without one, taken from storage; it
// names every other file with its size and sha256. Those are looked up in storage by their hash first and
// fetched otherwise, three at a time. Whatever its source, a file is read into a buffer of the recorded
// size, hashed, and only then copied to its place in the weights: no unverified byte gets there. A stored
// file that fails is dropped and fetched, that one alone; a fetched file that fails is fetched once more; then
// `format.model_file`. Not being able to store a file is a warning. When the model has been handed over, what
// is stored for no model any more is deleted, and the worker ends; the page aborts a load by terminating it.

import { AssetError, DeviceError, errorFrom, FormatError, InputError, LIMITS } from "./protocol.js";
import { check, MANIFEST, Slm2Error, WASM } from "./protocol.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";

/** @typedef {{file: string, bytes: number, sha256: string}} FileEntry */
/** @typedef {{tokenizer: FileEntry, weightsBytes: number, shards: FileEntry[]}} Plan */
/** @typedef {import("./protocol.js").Channels} Channels */

const STORE = "slm2-models";
const PARALLEL = 3;
const PROGRESS_INTERVAL_MS = 50;
// Room that the memory may grow by, for the KV cache and the rest; only what is used is taken.
const WORK_BYTES = 1 << 30;
// What the shared modules are linked for: 2 GiB.
const MAX_PAGES = 32768;

// What this script came with; `load` hears of a failure.
const ownSite = fetchSite(new URL("../", import.meta.url));
ownSite.catch(() => {});

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));

/** @param {Channels["loader_to_page"]} message */
const tellPage = (message) => worker.postMessage(message);

worker.addEventListener("message", async ({ data }) => {
  try {
    checkProtocol(data, "loader");
    await load(check("page_to_loader", data));
  } catch (error) {
    const { code, message, detail } =
      error instanceof Slm2Error ? error : errorFrom("protocol.internal", `loader: ${error}`);
    tellPage({ type: "error", id: null, code: /** @type {any} */ (code), message, detail });
  }
  worker.close();
});

/** @param {Channels["page_to_loader"]} request */
async function load({ site: pageSite, root, model, shared, port }) {
  const start = performance.now();
  if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(model)) {
    throw new InputError("input.model", `model: found ${JSON.stringify(model)}; allowed: a plain name`, {
      model,
    });
  }
  if (!globalThis.crypto?.subtle) {
    throw new DeviceError(
      "device.insecure_context",
      `${worker.location.origin} is not a secure context: the browser offers no SHA-256 to verify the model with`,
    );
  }
  const site = await ownSite;
  checkSite(pageSite, site.version, "loader");
  const folder = new URL(`models/${model}/`, root);
  const store = await openStore();
  const url = new URL("manifest.json", folder);
  const manifest = await fetchManifest(url, model, store);
  const plan = parseManifest(manifest);
  if (store) await store.put(url, new Response(manifest)).catch(warnNotStored("manifest.json"));
  const files = [plan.tokenizer, ...plan.shards];
  const progress = new Progress(files.reduce((sum, file) => sum + file.bytes, 0));

  const memory = shared ? allocateShared(plan.weightsBytes) : null;
  const weights = memory
    ? new Uint8Array(memory.buffer, WASM.weights_base, plan.weightsBytes)
    : allocate(plan.weightsBytes);
  /** @type {Uint8Array<ArrayBuffer> | undefined} */
  let tokenizer;
  const offsets = new Map();
  plan.shards.reduce((offset, shard) => (offsets.set(shard, offset), offset + shard.bytes), 0);

  const abort = new AbortController();
  const queue = files.values();
  const lane = async () => {
    for (const entry of queue) {
      const { bytes, fresh } = await obtain(folder, entry, { store, progress, signal: abort.signal });
      if (fresh && store) await keep(store, entry, bytes);
      if (entry === plan.tokenizer) tokenizer = bytes;
      else weights.set(bytes, offsets.get(entry));
    }
  };
  try {
    await Promise.all(Array.from({ length: PARALLEL }, lane));
  } catch (error) {
    abort.abort();
    throw error;
  }
  progress.tell(true);

  /** @type {Channels["loader_to_worker"]} */
  const message = {
    type: "model",
    manifest,
    tokenizer: /** @type {Uint8Array<ArrayBuffer>} */ (tokenizer),
    weights,
    memory,
    stats: {
      bytes: progress.total,
      cached_bytes: progress.cached,
      weights_ms: performance.now() - start,
    },
  };
  const transfer = [manifest.buffer, message.tokenizer.buffer];
  if (weights.buffer instanceof ArrayBuffer) transfer.push(weights.buffer);
  port.postMessage(message, transfer);
  if (store) await tidy(store, new URL("models/", root), [...site.models, model]).catch(console.warn);
}

/** Deletes what is stored for no model any more: this site's manifests of models that it has no longer, and the
 * files that no stored manifest names, of whichever site of this origin. The files are listed before the
 * manifests are read, and a manifest is stored before its files: one that is being loaded meanwhile loses none.
 * @param {Cache} store @param {URL} folder this site's models @param {string[]} models their names */
async function tidy(store, folder, models) {
  const own = models.map((name) => new URL(`${name}/manifest.json`, folder).href);
  const named = new Set();
  const files = [];
  for (const request of await store.keys()) {
    if (request.url.startsWith(storeKey("").href)) files.push(request);
    else if (request.url.startsWith(folder.href) && !own.includes(request.url)) await store.delete(request);
  }
  for (const request of await store.keys()) {
    // Another site's manifest may be of another version: whatever looks like a hash is one.
    const manifest = request.url.endsWith("/manifest.json") && (await (await store.match(request))?.text());
    for (const [hash] of (manifest || "").matchAll(/\b[0-9a-f]{64}\b/g)) named.add(storeKey(hash).href);
  }
  for (const request of files) if (!named.has(request.url)) await store.delete(request);
}

/** The file's bytes, of the recorded size and hash; `fresh` when they came from the network.
 * @param {URL} folder @param {FileEntry} entry
 * @param {{store: Cache | null, progress: Progress, signal: AbortSignal}} context
 * @returns {Promise<{bytes: Uint8Array<ArrayBuffer>, fresh: boolean}>} */
async function obtain(folder, entry, { store, progress, signal }) {
  const stored = await store?.match(storeKey(entry.sha256));
  if (stored) {
    const { bytes } = await read(stored, entry, progress, true);
    if (bytes) return { bytes, fresh: false };
    await store?.delete(storeKey(entry.sha256));
  }
  const url = new URL(entry.file, folder);
  // Where we keep the file ourselves, a second copy in the HTTP cache would be waste.
  const first = { signal, cache: store ? "no-store" : "default" };
  let found = "";
  for (const options of [first, { signal, cache: "reload" }]) {
    const result = await read(await fetchOk(url, /** @type {RequestInit} */ (options)), entry, progress, false);
    if (result.bytes) return { bytes: result.bytes, fresh: true };
    found = result.found;
  }
  throw new FormatError(
    "format.model_file",
    `${entry.file}: found ${found}; allowed: ${entry.bytes} bytes with sha256 ${entry.sha256}`,
    { file: entry.file, found, allowed: { bytes: entry.bytes, sha256: entry.sha256 } },
  );
}

/** The body, if it has the entry's size and hash; else what was found.
 * @param {Response} response @param {FileEntry} entry @param {Progress} progress @param {boolean} cached
 * @returns {Promise<{bytes?: Uint8Array<ArrayBuffer>, found: string}>} */
async function read(response, entry, progress, cached) {
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
      progress.add(value.byteLength, cached);
    }
  } catch (error) {
    progress.add(-length, cached);
    if (!cached) throw unreachable(response.url, `the connection broke after ${length} bytes: ${error}`);
    return { found: `an unreadable stored file: ${error}` };
  }
  if (!found && length < entry.bytes) found = `${length} bytes`;
  if (!found) {
    const sha256 = hex(await crypto.subtle.digest("SHA-256", bytes));
    if (sha256 === entry.sha256) return { bytes, found: "" };
    found = `sha256 ${sha256}`;
  }
  progress.add(-length, cached);
  return { found };
}

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

/** The newest manifest that can be had: the server's, or, when it does not answer, the stored one.
 * @param {URL} url @param {string} model @param {Cache | null} store
 * @returns {Promise<Uint8Array<ArrayBuffer>>} */
async function fetchManifest(url, model, store) {
  let response;
  try {
    response = await fetchOk(url, { cache: "no-cache" });
  } catch (error) {
    const status = error instanceof Slm2Error ? error.detail.status : undefined;
    if (status === 404) {
      throw new InputError("input.model", `${url} does not exist`, { model, url: url.href });
    }
    response = await store?.match(url);
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

/** The files that the manifest names. The engine checks the rest of it.
 * @param {Uint8Array<ArrayBuffer>} bytes @returns {Plan} */
function parseManifest(bytes) {
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
  const weightsBytes = integer(json.weights?.bytes, "weights.bytes", LIMITS.weights_bytes);
  const list = json.weights?.shards;
  if (!Array.isArray(list) || list.length < 1 || list.length > LIMITS.shards) {
    throw badManifest("weights.shards", show(list), `a list of 1 to ${LIMITS.shards} files`);
  }
  const shards = list.map((raw, i) => fileEntry(raw, `weights.shards[${i}]`, LIMITS.shard_bytes));
  const total = shards.reduce((sum, shard) => sum + shard.bytes, 0);
  if (total !== weightsBytes) {
    throw badManifest("weights.shards", `${total} bytes in all`, `${weightsBytes}`);
  }
  return { tokenizer: fileEntry(json.tokenizer, "tokenizer", LIMITS.tokenizer_bytes), weightsBytes, shards };
}

/** @param {any} raw @param {string} place @param {number} maxBytes @returns {FileEntry} */
function fileEntry(raw, place, maxBytes) {
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
function integer(value, place, high) {
  if (!Number.isSafeInteger(value) || value < 1 || value > high) {
    throw badManifest(place, show(value), `an integer from 1 to ${high}`);
  }
  return value;
}

/** Memory for the weights and, behind them, what the wasm kernels need: they use the weights where they lie.
 * @param {number} bytes */
function allocateShared(bytes) {
  const initial = Math.ceil((WASM.weights_base + bytes) / WASM.page_bytes);
  const maximum = Math.min(initial + WORK_BYTES / WASM.page_bytes, MAX_PAGES);
  try {
    return new WebAssembly.Memory({ initial, maximum, shared: true });
  } catch (error) {
    throw noMemory(bytes, error);
  }
}

/** @param {number} bytes */
function allocate(bytes) {
  try {
    return new Uint8Array(bytes);
  } catch (error) {
    throw noMemory(bytes, error);
  }
}

/** @param {number} bytes @param {unknown} error */
const noMemory = (bytes, error) =>
  new DeviceError("device.out_of_memory", `weights: the browser gives no ${bytes} bytes of memory: ${error}`, {
    bytes,
  });

/** The browser's store for models, or null where it has none (private windows of some browsers). */
async function openStore() {
  try {
    return await caches.open(STORE);
  } catch (error) {
    warnNotStored("model files")(error);
    return null;
  }
}

/** A stored file's address. It is its hash, so models and sites of one origin share equal files.
 * @param {string} sha256 */
const storeKey = (sha256) => new URL(`/slm2-models/sha256/${sha256}`, worker.location.origin);

/** @param {Cache} store @param {FileEntry} entry @param {Uint8Array<ArrayBuffer>} bytes */
async function keep(store, entry, bytes) {
  const headers = { "Content-Type": "application/octet-stream", "Content-Length": `${entry.bytes}` };
  await store.put(storeKey(entry.sha256), new Response(bytes, { headers })).catch(warnNotStored(entry.file));
}

/** @param {string} file @returns {(error: unknown) => void} */
const warnNotStored = (file) => (error) =>
  tellPage({ type: "warning", code: "asset.not_stored", message: `${file}: ${error}`, detail: { file } });

/** Counts bytes and tells the page, not more often than it can show. */
class Progress {
  done = 0;
  cached = 0;
  #told = 0;

  /** @param {number} total */
  constructor(total) {
    this.total = total;
    this.tell(true);
  }

  /** @param {number} bytes negative when they turned out to be wrong @param {boolean} cached */
  add(bytes, cached) {
    this.done += bytes;
    if (cached) this.cached += bytes;
    this.tell(false);
  }

  /** @param {boolean} now */
  tell(now) {
    if (!now && performance.now() - this.#told < PROGRESS_INTERVAL_MS) return;
    this.#told = performance.now();
    const { done, total, cached } = this;
    tellPage({ type: "progress", stage: "weights", done, total, unit: "bytes", cached });
  }
}

/** @param {ArrayBuffer} digest */
const hex = (digest) => Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");

/** @param {any} value */
const show = (value) => (JSON.stringify(value) ?? "nothing").slice(0, 80);

/** @param {string} url @param {string} reason @param {number} [status] */
const unreachable = (url, reason, status) =>
  new AssetError("asset.unreachable", `${url}: ${reason}`, { url, reason, ...(status && { status }) });

/** @param {string} place @param {string} found @param {string} allowed */
const badManifest = (place, found, allowed) =>
  new FormatError("format.manifest", `${place}: found ${found}; allowed: ${allowed}`, {
    place,
    found,
    allowed,
  });
