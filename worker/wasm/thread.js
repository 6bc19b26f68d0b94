// Thread: one more hand for pool.js. Sleeps on the generation word, runs its part of each pass, and never reads a
// message again until the word `quit` says that it may leave. What goes wrong here is said in the memory's `stop`
// word, which those who wait in a pass look at.
//
//     thread to page: "up"    page to thread: a port to the engine
//     thread to engine: "up"    engine to thread: Start    thread to engine: "ready", or what is wrong
//
// The second "up" is for Firefox, which can't read a message with shared memory that has lain in a port.

import { makeDigest, runThread, WORDS } from "./pool.js";

/** @typedef {{module: WebAssembly.Module, memory: WebAssembly.Memory, words: Int32Array<SharedArrayBuffer>,
 *   areas: import("./pool.js").Areas, thread: number, n_threads: number}} Start */

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));

worker.onmessage = (/** @type {MessageEvent} */ { data }) => {
  const port = /** @type {MessagePort} */ (data);
  port.onmessage = async ({ data }) => {
    const start = /** @type {Start} */ (data);
    try {
      await work(start, () => port.postMessage("ready"));
    } catch (error) {
      Atomics.store(new Int32Array(start.memory.buffer, start.areas.stop, 1), 0, 1);
      port.postMessage(String(error));
    }
    worker.close();
  };
  port.onmessageerror = () => port.postMessage("a message could not be read");
  port.postMessage("up");
};
worker.postMessage("up");

/** @param {Start} start @param {() => void} tellReady */
async function work({ module, memory, words, areas, thread, n_threads: nThreads }, tellReady) {
  const instance = await WebAssembly.instantiate(module, { env: { memory } });
  const exports = /** @type {Record<string, any>} */ (instance.exports);
  exports.__stack_pointer.value = areas.stacks + (thread + 1) * areas.stack_bytes;
  let generation = 0;
  tellReady();
  for (;;) {
    Atomics.wait(words, WORDS.generation, generation);
    if (Atomics.load(words, WORDS.quit)) return;
    const now = Atomics.load(words, WORDS.generation);
    if (now === generation) continue;
    generation = now;
    if (!runThread(exports, areas, words[WORDS.ops], words[WORDS.n_ops], thread, nThreads)) {
      throw new Error("another thread did not do its part of a pass");
    }
    if (thread === nThreads - 1) makeDigest(exports, areas, words[WORDS.logits_bytes]);
    Atomics.add(words, WORDS.idle, 1);
    Atomics.notify(words, WORDS.idle);
  }
}
