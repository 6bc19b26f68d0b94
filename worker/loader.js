// Loader: a worker that fetches a model's files and hands them, verified, to the engine's worker.
//
// Theory of operation. The manifest names the files (files.js), which are obtained three at a time, each at its
// place in the weights; nobody else sees that memory before every byte in it was verified. When the model has been
// handed over, what is stored for no model any more is deleted. The page ends the worker, to abort a load or when
// the engine is ready. It must not end itself: Firefox loses a port's message whose sender is gone before the
// receiver, busy booting Python, has come to it.

import { badManifest, fileEntry, integer, ModelFiles, show } from "./files.js";
import { live } from "./life.js";
import { check, DeviceError, errorFrom, LIMITS, Slm2Error, WASM } from "./protocol.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";

/** @typedef {import("./files.js").FileEntry} FileEntry */
/** @typedef {{tokenizer: FileEntry, weightsBytes: number, shards: FileEntry[]}} Plan */
/** @typedef {import("./protocol.js").Channels} Channels */

const PARALLEL = 3;
const PROGRESS_INTERVAL_MS = 50;
// Room that the memory may grow by, for the KV cache and the rest; only what is used is taken.
const WORK_BYTES = 1 << 30;
const MAX_PAGES = WASM.max_bytes / WASM.page_bytes;
// Nothing of ours lies at address 0, and the kernel wants its file aligned.
const TOKENIZER_BASE = 64;

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
});

/** @param {Channels["page_to_loader"]} request */
async function load(request) {
  const start = performance.now();
  const wanted = new Promise((resolve, reject) => {
    request.port.onmessage = ({ data }) => {
      try {
        resolve(check("worker_to_loader", data));
      } catch (error) {
        reject(error);
      }
    };
  });
  wanted.catch(() => {}); // heard below
  await live();
  /** @type {Progress | null} */
  let progress = null;
  const files = await ModelFiles.open(request, {
    onBytes: (bytes, cached) => progress?.add(bytes, cached),
    onWarning: ({ code, message, detail }) =>
      tellPage({ type: "warning", code: /** @type {any} */ (code), message, detail }),
  });
  const asked = files.manifest(ownSite);
  asked.catch(() => {}); // heard below
  const site = await ownSite;
  checkSite(request.site, site.version, "loader");
  const { bytes: manifest, json } = await asked;
  const plan = parsePlan(json);
  await files.begin();
  const entries = [plan.tokenizer, ...plan.shards];
  progress = new Progress(entries.reduce((sum, entry) => sum + entry.bytes, 0));

  // Each in a memory of its own, where the kernels use it as it lies.
  const weights = room(plan.weightsBytes, WASM.weights_base, request.shared);
  const tokenizer = room(plan.tokenizer.bytes, TOKENIZER_BASE, request.shared);
  const places = new Map([[plan.tokenizer, tokenizer.view]]);
  plan.shards.reduce((offset, shard) => {
    places.set(shard, weights.view.subarray(offset, offset + shard.bytes));
    return offset + shard.bytes;
  }, 0);

  const abort = new AbortController();
  const queue = places.entries();
  const lane = async () => {
    for (const [entry, place] of queue) await files.obtain(entry, place, abort.signal);
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
    tokenizer: tokenizer.view,
    tokenizer_memory: tokenizer.memory,
    weights: weights.view,
    memory: weights.memory,
    stats: {
      bytes: progress.total,
      cached_bytes: progress.cached,
      weights_ms: performance.now() - start,
    },
  };
  const transfer = [manifest, tokenizer.view, weights.view]
    .map((view) => view.buffer)
    .filter((buffer) => buffer instanceof ArrayBuffer);
  await wanted;
  request.port.postMessage(message, transfer);
  await files.tidy(entries, site.models).catch(console.warn);
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

/** Room for `bytes`: from `base` on in a shared memory, behind which a wasm kernel finds room to work; else plain.
 * @param {number} bytes @param {number} base @param {boolean} shared
 * @returns {{view: Uint8Array, memory: WebAssembly.Memory | null}} */
function room(bytes, base, shared) {
  try {
    if (!shared) return { view: new Uint8Array(bytes), memory: null };
    const initial = Math.ceil((base + bytes) / WASM.page_bytes);
    const maximum = Math.min(initial + WORK_BYTES / WASM.page_bytes, MAX_PAGES);
    const memory = new WebAssembly.Memory({ initial, maximum, shared: true });
    return { view: new Uint8Array(memory.buffer, base, bytes), memory };
  } catch (error) {
    const message = `model: the browser gives no ${bytes} bytes of memory: ${error}`;
    throw new DeviceError("device.out_of_memory", message, { bytes });
  }
}

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
