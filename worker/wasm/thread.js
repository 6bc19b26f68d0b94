// Thread: one more hand for pool.js. Sleeps on the generation word, runs its part of each pass, and never reads a
// message again: the engine ends it by terminating the worker.

import { runThread, WORDS } from "./pool.js";

/** @typedef {{module: WebAssembly.Module, memory: WebAssembly.Memory, words: Int32Array<SharedArrayBuffer>,
 *   areas: import("./pool.js").Areas, thread: number, n_threads: number}} Start */

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));

worker.onmessage = async (/** @type {MessageEvent} */ { data }) => {
  const { module, memory, words, areas, thread, n_threads: nThreads } = /** @type {Start} */ (data);
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
    runThread(exports, areas, words[WORDS.ops], words[WORDS.n_ops], thread, nThreads);
    Atomics.add(words, WORDS.idle, 1);
    Atomics.notify(words, WORDS.idle);
  }
};
