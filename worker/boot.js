// Boot: Pyodide with numpy and our wheel, all from this site. Gives the Python engine.
//
// Theory of operation. site.json names the runtime's files and the wheels, all of which are asked for at once
// (python.js). The browser's own records of finished requests (PerformanceObserver) give honest bytes of progress
// without touching the requests.

import { Replay } from "./gpu/replay.js";
import { dropFiles } from "./lean.js";
import { AssetError, DeviceError, WASM } from "./protocol.js";
import { pathsOf, startPython } from "./python.js";
import { soon } from "./soon.js";
import { moduleOf } from "./wasm/modules.js";
import { Pool } from "./wasm/pool.js";
import { TokenizerKernel } from "./wasm/tokenizer.js";

/** @typedef {import("./protocol.js").Stage} Stage */
/** @typedef {(stage: Stage, done: number, total: number, unit: "bytes" | "steps", cached?: number) => void} Tell */
/** @typedef {import("./site.js").Site} Site */
/** The engine as bridge/engine.py makes it.
 * @typedef {{
 *   load: (files: {manifest: Uint8Array, tokenizer: Uint8Array, tokenizerMemory: WebAssembly.Memory | null,
 *     weights: Uint8Array, memory: WebAssembly.Memory | null}, executor: string, maxSeqLen: number | null,
 *     emit: Tell) => Promise<any>,
 *   chat: (request: object, emit: (kind: string, a: any, b: any, nTokens: number) => void,
 *     cancelled: () => boolean) => Promise<any>,
 *   parity: (request: object, emit: (part: object) => void, cancelled: () => boolean) => Promise<any>,
 *   parity_record: (request: object) => Promise<any>,
 *   parity_output: (request: object) => Promise<any>,
 *   dispose: () => void,
 * }} Engine */

/** The engine, not yet loaded, and how long each stage took.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`; DeviceError `device.out_of_memory`, `device.insecure_context`.
 * @param {URL} root @param {Site} site @param {boolean} shared whether the model's memory will be @param {Tell} tell
 * @param {() => MessagePort} startThread see Pool
 * @returns {Promise<{engine: Engine, timings: Record<string, number>, heapBytes: () => number}>} */
export async function boot(root, site, shared, tell, startThread) {
  /** @type {Record<string, number>} */
  const timings = {};
  /** @template T @param {Stage} stage @param {() => Promise<T>} work @returns {Promise<T>} */
  const timed = async (stage, work) => {
    const start = performance.now();
    tell(stage, 0, 1, "steps");
    try {
      return await work();
    } catch (error) {
      throw explain(stage, error);
    } finally {
      timings[`${stage}_ms`] = (timings[`${stage}_ms`] ?? 0) + performance.now() - start;
    }
  };

  const watch = watchBytes(root, site, (done, total, cached) => tell("runtime", done, total, "bytes", cached));
  const pyodide = await timed("runtime", async () => {
    const result = await startPython(root, site, [site.numpy, site.wheel]);
    watch.end();
    const webloop = result.pyimport("pyodide.webloop");
    webloop.scheduleCallback = soon;
    webloop.destroy();
    return result;
  });
  // What the model will need at once when it is there. Who needs one hears of its failure.
  for (const name of /** @type {const} */ (["tokenizer", "forward"])) {
    moduleOf(root, site, name, shared).catch(() => {});
  }
  await timed("numpy", async () => pyodide.pyimport("numpy").destroy());
  tell("numpy", 1, 1, "steps");
  const engine = await timed("package", async () => {
    const bridge = pyodide.pyimport("slm2_web.bridge");
    const made = bridge.Engine(hostOf(root, site, startThread));
    bridge.destroy();
    dropFiles(pyodide);
    return made;
  });
  tell("package", 1, 1, "steps");
  return { engine, timings, heapBytes: () => pyodide._module.HEAPU8.length };
}

/** The JavaScript halves of the devices and of the tokenizer, for bridge/engine.py.
 * @param {URL} root @param {Site} site @param {() => MessagePort} startThread */
const hostOf = (root, site, startThread) => ({
  /** @param {GPUDevice} device */
  makeReplay: (device) => new Replay(device),
  /** @param {WebAssembly.Memory | null} memory @param {Uint8Array} weights @param {number} base
   * @param {number} end @param {number} nThreads */
  makePool: async (memory, weights, base, end, nThreads) => {
    const module = await moduleOf(root, site, "forward", memory !== null);
    return Pool.create(module, memory, weights, base, end, nThreads, startThread);
  },
  /** @param {Uint8Array} file @param {WebAssembly.Memory | null} memory */
  makeTokenizer: async (file, memory) => {
    const module = await moduleOf(root, site, "tokenizer", memory !== null);
    if (!memory) return TokenizerKernel.load(module, file);
    const [start, end] = [file.byteOffset, file.byteOffset + file.byteLength];
    return TokenizerKernel.attach(module, memory, { start, end }, { start: end, end: WASM.max_bytes });
  },
});

/** Tells how many bytes of the runtime have arrived, a file at a time, until `end`.
 * @param {URL} root @param {Site} site @param {(done: number, total: number, cached: number) => void} tell */
function watchBytes(root, site, tell) {
  const names = pathsOf(site, [site.numpy, site.wheel]);
  const total = names.reduce((sum, name) => sum + site.files[name].bytes, 0);
  const waiting = new Map(names.map((name) => [new URL(name, root).href, site.files[name].bytes]));
  let done = 0;
  let cached = 0;
  const observer = new PerformanceObserver((list) => {
    for (const entry of /** @type {PerformanceResourceTiming[]} */ (list.getEntries())) {
      const bytes = waiting.get(entry.name) ?? 0;
      waiting.delete(entry.name);
      done += bytes;
      if (entry.transferSize === 0) cached += bytes;
    }
    tell(done, total, cached);
  });
  observer.observe({ type: "resource", buffered: true });
  tell(0, total, 0);
  return {
    end() {
      observer.disconnect();
      tell(total, total, cached);
    },
  };
}

/** @param {Stage} stage @param {any} error */
function explain(stage, error) {
  if (typeof error?.code === "string") return error;
  const reason = String(error?.message ?? error).trim().split("\n").at(-1) ?? "";
  if (error instanceof RangeError) {
    return new DeviceError("device.out_of_memory", `${stage}: the browser gives no memory: ${reason}`, { stage });
  }
  if (error instanceof WebAssembly.CompileError || error instanceof WebAssembly.LinkError) {
    return new DeviceError("device.no_wasm", `${stage}: ${reason}`, { stage });
  }
  return new AssetError("asset.unreachable", `${stage}: could not be loaded from this site: ${reason}`, {
    stage,
    reason,
  });
}
