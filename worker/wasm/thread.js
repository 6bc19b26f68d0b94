// Thread: one more hand for pool.js. Sleeps on the generation word, runs its part of each pass, and never reads a
// message again until the word `quit` says that it may leave. What goes wrong here is said in the memory's `stop`
// word, which those who wait in a pass look at, and in a message.
//
// A thread that has left is idle, and ends with the engine's worker, or by itself some time later, when another pool
// has taken over. It is neither terminated nor in a hurry: a worker that is terminated while a worker of its own is
// ending stays in Chromium for good, with all its memory (seen in 1 of 15 with `terminate`, 1 of 150 with `close`).

import { runThread, WORDS } from "./pool.js";

/** @typedef {{module: WebAssembly.Module, memory: WebAssembly.Memory, words: Int32Array<SharedArrayBuffer>,
 *   areas: import("./pool.js").Areas, thread: number, n_threads: number}} Start */

const LINGER_MS = 10_000;

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));

worker.onmessage = async (/** @type {MessageEvent} */ { data }) => {
  const start = /** @type {Start} */ (data);
  try {
    await work(start);
  } catch (error) {
    Atomics.store(new Int32Array(start.memory.buffer, start.areas.stop, 1), 0, 1);
    worker.postMessage(String(error));
  }
  setTimeout(() => worker.close(), LINGER_MS);
};

/** @param {Start} start */
async function work({ module, memory, words, areas, thread, n_threads: nThreads }) {
  const instance = await WebAssembly.instantiate(module, { env: { memory } });
  const exports = /** @type {Record<string, any>} */ (instance.exports);
  exports.__stack_pointer.value = areas.stacks + (thread + 1) * areas.stack_bytes;
  let generation = 0;
  worker.postMessage("ready");
  for (;;) {
    Atomics.wait(words, WORDS.generation, generation);
    if (Atomics.load(words, WORDS.quit)) return;
    const now = Atomics.load(words, WORDS.generation);
    if (now === generation) continue;
    generation = now;
    if (!runThread(exports, areas, words[WORDS.ops], words[WORDS.n_ops], thread, nThreads)) return;
    Atomics.add(words, WORDS.idle, 1);
    Atomics.notify(words, WORDS.idle);
  }
}
