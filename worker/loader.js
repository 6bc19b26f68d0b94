// Loader: a worker that fetches a model's files and hands them, verified, to the engine's worker.
//
// Theory of operation. The manifest names the files (files.js), which are obtained three at a time; each is copied
// to its place in the weights only after it was verified: no unverified byte gets there. When the model has been
// handed over, what is stored for no model any more is deleted, and the worker ends; the page aborts a load by
// terminating it.

import { badManifest, fileEntry, integer, ModelFiles, show } from "./files.js";
import { check, DeviceError, errorFrom, LIMITS, Slm2Error, WASM } from "./protocol.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";

/** @typedef {import("./files.js").FileEntry} FileEntry */
/** @typedef {{tokenizer: FileEntry, weightsBytes: number, shards: FileEntry[]}} Plan */
/** @typedef {import("./protocol.js").Channels} Channels */

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
async function load(request) {
  const start = performance.now();
  /** @type {Progress | null} */
  let progress = null;
  const files = await ModelFiles.open(request, {
    onBytes: (bytes, cached) => progress?.add(bytes, cached),
    onNotStored: (file, error) =>
      tellPage({ type: "warning", code: "asset.not_stored", message: `${file}: ${error}`, detail: { file } }),
  });
  const site = await ownSite;
  checkSite(request.site, site.version, "loader");
  const { bytes: manifest, json } = await files.manifest();
  const plan = parsePlan(json);
  const entries = [plan.tokenizer, ...plan.shards];
  progress = new Progress(entries.reduce((sum, entry) => sum + entry.bytes, 0));

  const memory = request.shared ? allocateShared(plan.weightsBytes) : null;
  const weights = memory
    ? new Uint8Array(memory.buffer, WASM.weights_base, plan.weightsBytes)
    : allocate(plan.weightsBytes);
  /** @type {Uint8Array<ArrayBuffer> | undefined} */
  let tokenizer;
  const offsets = new Map();
  plan.shards.reduce((offset, shard) => (offsets.set(shard, offset), offset + shard.bytes), 0);

  const abort = new AbortController();
  const queue = entries.values();
  const lane = async () => {
    for (const entry of queue) {
      const bytes = await files.obtain(entry, abort.signal);
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
  request.port.postMessage(message, transfer);
  await files.tidy(site.models).catch(console.warn);
}

/** The files that the manifest names. The engine checks the rest of it. @param {any} json @returns {Plan} */
function parsePlan(json) {
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
