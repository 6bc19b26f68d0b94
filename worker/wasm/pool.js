// Pool: runs forward.c's programs in the engine's worker and, on shared memory, in more workers beside it. The page
// starts and ends those: Chromium keeps a worker, now and then, that is ended while workers of its own are ending.
//
// Theory of operation. The weights lie in one WebAssembly.Memory. A pass is one call of `forward_run` in every
// thread. The engine's thread writes the pass into shared words, raises their generation, and takes part
// itself; the others (thread.js) sleep on the generation between passes. The engine's thread returns from its
// own call when all operations are done, and before the next pass it waits until every other thread has left
// its call too: only then may the turns be zeroed. Meanwhile the last thread makes the digest of the logits.
//
// A thread that fails says so in a word of the memory, `stop`, which the others look at while they wait. The pass, or
// the next one if there was nothing left to do, ends with `device.worker`, and so does every later one. Another pool
// may take over, behind this one in the same memory.
//
// Without shared memory there is one thread, a plain memory, and no waiting.

import { DeviceError, WASM } from "../protocol.js";

/** @typedef {{turns: number, turns_bytes: number, step: number, ids: number, logits: number,
 *   scratch: number, scratch_bytes: number, stop: number, stacks: number, stack_bytes: number, digest: number}} Areas */

const PAGE_BYTES = WASM.page_bytes;
const MAX_PAGES = WASM.max_bytes / WASM.page_bytes;

/** Words of the shared control block. */
export const WORDS = Object.freeze({ generation: 0, idle: 1, quit: 2, ops: 3, n_ops: 4, logits_bytes: 5 });
const N_WORDS = Object.keys(WORDS).length;

// How often a thread that waits looks at `stop`, and how many times for one that has not left a pass that is over: far
// more than it needs to be woken, to see that nothing is left to do, and to make a digest. Slices, since clocks go on
// while a machine sleeps.
const SLICE_MS = 100;
const PATIENCE_SLICES = 50;
const READY_MS = 30_000;
const DIGEST_BYTES = 32;

export class Pool {
  /** Milliseconds that the last pass spent in the kernels. */
  kernelMs = 0;
  /** Whether the memory is shared. */
  isShared;
  /** @type {WebAssembly.Memory} */
  memory;
  /** @type {WebAssembly.Exports & Record<string, any>} */
  #exports;
  #words;
  #end;
  /** @type {Areas | null} */
  #areas = null;
  #module;
  #stopped = false;
  #startThread;

  /** @param {WebAssembly.Module} module @param {WebAssembly.Instance} instance @param {WebAssembly.Memory} memory
   * @param {number} end first free byte @param {number} nThreads @param {() => MessagePort} startThread */
  constructor(module, instance, memory, end, nThreads, startThread) {
    this.memory = memory;
    this.nThreads = nThreads;
    this.#module = module;
    this.#exports = instance.exports;
    this.#end = end;
    this.#startThread = startThread;
    this.isShared = typeof SharedArrayBuffer === "function" && memory.buffer instanceof SharedArrayBuffer;
    this.#words = new Int32Array(this.isShared ? new SharedArrayBuffer(4 * N_WORDS) : new ArrayBuffer(4 * N_WORDS));
  }

  /** A pool on the shared memory that holds the weights from `base` to `end`, or, without one, on a plain memory
   * that they are copied into. `startThread` gives a port to a new thread.js.
   *
   * Throws DeviceError `device.out_of_memory`.
   * @param {WebAssembly.Module} module forward.wasm, or forward.shared.wasm
   * @param {WebAssembly.Memory | null} shared @param {Uint8Array} weights
   * @param {number} base @param {number} end @param {number} nThreads @param {() => MessagePort} startThread */
  static async create(module, shared, weights, base, end, nThreads, startThread) {
    const memory = shared ?? plainMemory(end);
    if (!shared) new Uint8Array(memory.buffer).set(weights, base);
    const instance = await WebAssembly.instantiate(module, { env: { memory } });
    // Behind all that the memory holds: a thread of a pool before this one may still write there.
    return new Pool(module, instance, memory, memory.buffer.byteLength, shared ? nThreads : 1, startThread);
  }

  /** The address of `size` more bytes, zeroed. @param {number} size @param {number} alignment */
  reserve(size, alignment) {
    const address = Math.ceil(this.#end / alignment) * alignment;
    this.#end = address + size;
    const missing = Math.ceil(this.#end / PAGE_BYTES) - this.memory.buffer.byteLength / PAGE_BYTES;
    if (missing > 0) {
      try {
        this.memory.grow(missing);
      } catch (error) {
        const message = `the browser gives no wasm memory of ${this.#end} bytes: ${error}`;
        throw new DeviceError("device.out_of_memory", message, { bytes: this.#end });
      }
    }
    return address;
  }

  /** @param {number} address @param {Uint8Array} data */
  write(address, data) {
    new Uint8Array(this.memory.buffer, address, data.byteLength).set(data);
  }

  /** A copy. @param {number} address @param {number} size */
  read(address, size) {
    return new Uint8Array(this.memory.buffer.slice(address, address + size));
  }

  /** Starts the other threads; resolves when all of them wait for work. @param {Areas} areas */
  async setUp(areas) {
    this.#areas = areas;
    this.#exports.__stack_pointer.value = areas.stacks + areas.stack_bytes;
    const { memory, nThreads } = this;
    const common = { module: this.#module, memory, words: this.#words, areas, n_threads: nThreads };
    const others = Array.from({ length: nThreads - 1 }, (_, i) => i + 1);
    await Promise.all(others.map((thread) => ready(this.#startThread(), { ...common, thread })));
    this.#words[WORDS.idle] = nThreads - 1;
  }

  /** Runs a program; gives `size` bytes of logits, which are good until the next pass. The thread is busy meanwhile.
   * @param {number} ops @param {number} nOps @param {number[]} step @param {number[]} ids @param {number} size */
  run(ops, nOps, step, ids, size) {
    const areas = /** @type {Areas} */ (this.#areas);
    if (this.#stopped) throw new DeviceError("device.worker", "the threads have been stopped");
    this.#awaitIdle();
    const { buffer } = this.memory;
    new Uint32Array(buffer, areas.step, 4).set(step);
    new Uint32Array(buffer, areas.ids, ids.length).set(ids);
    new Uint8Array(buffer, areas.turns, areas.turns_bytes).fill(0);
    this.#words[WORDS.logits_bytes] = size;
    if (this.nThreads > 1) {
      this.#words[WORDS.ops] = ops;
      this.#words[WORDS.n_ops] = nOps;
      Atomics.store(this.#words, WORDS.idle, 0);
      Atomics.add(this.#words, WORDS.generation, 1);
      Atomics.notify(this.#words, WORDS.generation);
    }
    const start = performance.now();
    const done = runThread(this.#exports, areas, ops, nOps, 0, this.nThreads);
    this.kernelMs = performance.now() - start;
    if (!done) {
      this.dispose();
      throw new DeviceError("device.worker", "a thread did not do its part of a pass");
    }
    return new Float32Array(buffer, areas.logits, size / 4);
  }

  /** A copy of the sha256 of the last pass's logits. Throws DeviceError `device.worker`. */
  digest() {
    const areas = /** @type {Areas} */ (this.#areas);
    if (this.nThreads === 1) makeDigest(this.#exports, areas, this.#words[WORDS.logits_bytes]);
    else this.#awaitIdle();
    return this.read(areas.digest, DIGEST_BYTES);
  }

  /** Until every other thread has left the pass before. */
  #awaitIdle() {
    if (this.nThreads === 1) return;
    const others = this.nThreads - 1;
    const stop = new Int32Array(this.memory.buffer, /** @type {Areas} */ (this.#areas).stop, 1);
    let slices = 0;
    for (let idle; (idle = Atomics.load(this.#words, WORDS.idle)) !== others; ) {
      if (Atomics.load(stop, 0) || slices > PATIENCE_SLICES) {
        this.dispose();
        throw new DeviceError("device.worker", "a thread did not come back from its work", { idle, others });
      }
      slices += Number(Atomics.wait(this.#words, WORDS.idle, idle, SLICE_MS) === "timed-out");
    }
  }

  /** Tells the threads to leave, at once or at the next look at `stop` (thread.js). */
  dispose() {
    this.#stopped = true;
    if (this.nThreads === 1) return;
    if (this.#areas) Atomics.store(new Int32Array(this.memory.buffer, this.#areas.stop, 1), 0, 1);
    Atomics.store(this.#words, WORDS.quit, 1);
    Atomics.add(this.#words, WORDS.generation, 1);
    Atomics.notify(this.#words, WORDS.generation);
  }
}

/** Resolves when a thread waits for work. Throws DeviceError `device.worker`.
 * @param {MessagePort} port @param {{thread: number}} start
 * @returns {Promise<void>} */
function ready(port, start) {
  return new Promise((resolve, reject) => {
    /** @param {string} why */
    const fail = (why) => reject(new DeviceError("device.worker", `thread ${start.thread}: ${why}`));
    // A thread that the browser ends says nothing.
    const silence = setTimeout(() => fail(`not ready within ${READY_MS} ms`), READY_MS);
    port.onmessage = ({ data }) => {
      if (data === "up") return port.postMessage(start);
      clearTimeout(silence);
      if (data === "ready") resolve();
      else fail(data);
      port.close();
    };
  });
}

/** @param {number} bytes */
function plainMemory(bytes) {
  try {
    return new WebAssembly.Memory({ initial: Math.ceil(bytes / PAGE_BYTES), maximum: MAX_PAGES });
  } catch (error) {
    throw new DeviceError("device.out_of_memory", `wasm: the browser gives no ${bytes} bytes: ${error}`, { bytes });
  }
}

/** One thread's part of a pass; false when another thread did not do its own.
 * @param {Record<string, any>} exports @param {Areas} areas @param {number} ops @param {number} nOps
 * @param {number} thread @param {number} nThreads */
export function runThread(exports, areas, ops, nOps, thread, nThreads) {
  const { step, turns, scratch, scratch_bytes: scratchBytes, stop } = areas;
  return exports.forward_run(ops, nOps, step, turns, scratch, scratchBytes, stop, thread, nThreads) === 1;
}

/** The sha256 of the logits that a pass has left, beside them.
 * @param {Record<string, any>} exports @param {Areas} areas @param {number} size bytes of logits */
export function makeDigest(exports, areas, size) {
  exports.forward_digest(areas.logits, size, areas.digest);
}
