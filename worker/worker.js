// Worker: runs the engine. Everything the page asks of a model goes through here.
//
//            init              model + boot done           chat
//     new ---------> loading -------------------> ready <--------> busy
//                       | any failure                                      dispose, from anywhere: closed
//                       v
//                     failed
//
// A message in a state that does not take it is answered with `protocol.state`. Cancelling works in two ways:
// Python asks `cancelled()` before each forward pass, which reads the shared word where there is one, and what
// `cancel` messages have said (they arrive while the engine waits for a GPU, and between the passes of wasm).

import { boot } from "./boot.js";
import { live } from "./life.js";
import { check, CONTROL_WORDS, errorFrom, ProtocolError, Slm2Error } from "./protocol.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";

/** @typedef {import("./protocol.js").Channels} Channels */
/** @typedef {"new" | "loading" | "ready" | "busy" | "failed" | "closed"} State */

/** @type {Record<Channels["page_to_worker"]["type"], readonly State[]>} */
const TAKEN_IN = {
  init: ["new"],
  chat: ["ready"],
  parity: ["ready"],
  parity_record: ["ready"],
  parity_output: ["ready"],
  cancel: ["ready", "busy"],
  dispose: ["new", "loading", "ready", "busy", "failed"],
};

// What this script came with; `load` hears of a failure.
const ownSite = fetchSite(new URL("../", import.meta.url));
ownSite.catch(() => {});

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));
/** @type {State} */
let state = "new";
/** @type {import("./boot.js").Engine | null} */
let engine = null;
/** @type {Int32Array | null} */
let control = null;
let cancelledId = 0;
/** Held open as long as this worker lives: a private window of WebKit forgets what a cache holds that nobody has
 * open, and the loader is ended. @type {Set<Cache>} */
const held = new Set();
let lastId = 0;
/** Tells the page that it may end this worker. It must not end itself: Chromium is then in no hurry. */
let letGo = () => {};

/** @param {Channels["worker_to_page"]} message @param {Transferable[]} [transfer] */
const tellPage = (message, transfer = []) => worker.postMessage(message, { transfer });

/** @type {import("./boot.js").Tell} */
const tellProgress = (stage, done, total, unit, cached = 0) =>
  tellPage({ type: "progress", stage, done, total, unit, cached });

/** A port to a thread for pool.js, which the page starts. */
function startThread() {
  const { port1, port2 } = new MessageChannel();
  tellPage({ type: "thread", port: port2 }, [port2]);
  return port1;
}

/** @param {number | null} id @param {any} error */
function tellError(id, error) {
  const known = error instanceof Slm2Error || typeof error?.code === "string";
  const { code, message, detail } = known ? error : errorFrom("protocol.internal", lastLine(error));
  if (!known) console.error(error);
  tellPage({ type: "error", id, code, message, detail: detail ?? {} });
}

/** A Python traceback ends with what happened. @param {any} error */
const lastLine = (error) => String(error?.message ?? error).trim().split("\n").at(-1) ?? "";

worker.addEventListener("message", ({ data }) => receive(data));
worker.addEventListener("messageerror", () => tellError(null, "a message could not be read"));
worker.addEventListener("unhandledrejection", ({ reason }) => tellError(null, reason));

/** @param {any} data */
async function receive(data) {
  /** @type {number | null} */
  let id = null;
  try {
    checkProtocol(data, "worker");
    const message = check("page_to_worker", data);
    if (["chat", "parity", "parity_record", "parity_output"].includes(message.type)) id = /** @type {any} */ (message).id;
    if (!TAKEN_IN[message.type].includes(state)) {
      const detail = { found: state, allowed: TAKEN_IN[message.type].join(" | ") };
      throw new ProtocolError("protocol.state", `${message.type}: the worker is ${state}`, detail);
    }
    switch (message.type) {
      case "init":
        state = "loading";
        await load(message);
        break;
      case "chat":
        state = "busy";
        await chat(message);
        break;
      case "parity":
      case "parity_record":
      case "parity_output":
        state = "busy";
        await parity(message);
        break;
      case "cancel":
        cancelledId = Math.max(cancelledId, message.id);
        break;
      case "dispose":
        state = "closed";
        engine?.dispose();
        held.clear();
        letGo();
    }
  } catch (error) {
    if (state === "loading") state = "failed";
    tellError(id, error);
  }
}

/** @param {import("./protocol.js").InitMessage} message */
async function load({ site: pageSite, root: rootUrl, executor, max_seq_len: maxSeqLen, control: words, port }) {
  const start = performance.now();
  const root = new URL(rootUrl);
  control = words && new Int32Array(words);
  letGo = await live();
  const booting = ownSite.then((site) => {
    checkSite(pageSite, site.version, "worker");
    return boot(root, site, words !== null, tellProgress, startThread);
  });
  const [booted, model] = await Promise.all([booting, booting.then(() => receiveModel(port))]);
  const { manifest, tokenizer, tokenizer_memory: tokenizerMemory, weights, memory, stats } = model;
  const files = { manifest, tokenizer, tokenizerMemory, weights, memory };
  const loading = booted.engine.load(files, executor, maxSeqLen, tellProgress);
  const info = unwrap(await loading);
  engine = booted.engine;
  await holdCaches().catch(() => {}); // who gives none has none to forget
  await checkNothingChanged(root, pageSite);
  info.site = pageSite;
  info.timings = {
    ...booted.timings,
    weights_ms: stats.weights_ms,
    ...info.timings,
    total_ms: performance.now() - start,
  };
  info.memory = { ...info.memory, python_heap_bytes: booted.heapBytes(), weights_bytes: weights.byteLength };
  info.memory.weights_shared = memory !== null;
  state = "ready";
  tellPage({ type: "ready", info });
}

async function holdCaches() {
  for (const name of await caches.keys()) if (name.startsWith("slm2-models")) held.add(await caches.open(name));
}

/** Throws `protocol.version` if the site was replaced while its files were fetched. No answer is no difference.
 * @param {URL} root @param {string} version */
async function checkNothingChanged(root, version) {
  const site = await fetchSite(root).catch(() => null);
  if (site) checkSite(version, site.version, "worker");
}

/** The loader's message, which it sends when it hears that somebody waits for it: Firefox can't read a message
 * with shared memory any more that has lain in a port while this worker was busy booting Python.
 * @param {MessagePort} port
 * @returns {Promise<import("./protocol.js").ModelMessage>} */
function receiveModel(port) {
  return new Promise((resolve, reject) => {
    port.onmessage = ({ data }) => {
      port.close();
      try {
        resolve(check("loader_to_worker", data));
      } catch (error) {
        reject(error);
      }
    };
    port.onmessageerror = () => reject(new ProtocolError("protocol.message", "loader: the model could not be read"));
    /** @type {Channels["worker_to_loader"]} */
    const want = { type: "want" };
    port.postMessage(want);
  });
}

/** The id of a request, which is larger than any before. @param {string} type @param {number} id */
function takeId(type, id) {
  if (id <= lastId) {
    const detail = { found: id, allowed: `more than ${lastId}` };
    throw new ProtocolError("protocol.message", `${type}.id: found ${id}; allowed: more than ${lastId}`, detail);
  }
  lastId = id;
}

/** Whether the page has cancelled request `id`. @param {number} id */
const isCancelled = (id) =>
  cancelledId >= id || (control !== null && Atomics.load(control, CONTROL_WORDS.cancelled_id) >= id);

/** @param {Extract<Channels["page_to_worker"], {type: "parity" | "parity_record" | "parity_output"}>} message */
async function parity({ id, ...request }) {
  const running = /** @type {import("./boot.js").Engine} */ (engine);
  try {
    takeId(request.type, id);
    if (request.type === "parity") {
      /** @param {any} part */
      const emit = (part) => tellPage({ ...part, id });
      const info = unwrap(await running.parity(request, emit, () => isCancelled(id)));
      state = "ready";
      tellPage({ type: "parity_done", id, info });
    } else {
      const one = request.type === "parity_record" ? running.parity_record : running.parity_output;
      const { record } = unwrap(await one(request));
      state = "ready";
      tellPage({ type: "parity_vector", id, record }, [record.buffer]);
    }
  } catch (error) {
    state = "ready";
    throw error;
  }
}

/** @param {import("./protocol.js").ChatMessage} message */
async function chat({ type, id, ...request }) {
  try {
    takeId(type, id);
    /** @param {string} kind @param {any} a @param {any} b @param {number} nTokens */
    const emit = (kind, a, b, nTokens) => {
      if (kind === "context") tellPage({ type: "context", id, ledger: a });
      else if (kind === "prefill") tellPage({ type: "prefill", id, done: a, total: b });
      else if (a.byteLength > 0) tellPage({ type: "delta", id, part: b, data: a, n_tokens: nTokens }, [a.buffer]);
    };
    const cancelled = () => isCancelled(id);
    const running = /** @type {import("./boot.js").Engine} */ (engine).chat(request, emit, cancelled);
    const { reason, transcript, stats, more } = unwrap(await running);
    const data = new TextEncoder().encode(transcript);
    state = "ready";
    tellPage({ type: "done", id, reason, transcript: data, stats, more }, [data.buffer]);
  } catch (error) {
    state = "ready";
    throw error;
  }
}

/** What Python answered, or the error that it answered with. @param {any} outcome */
function unwrap(outcome) {
  if (outcome?.error) throw errorFrom(outcome.error.code, outcome.error.message, outcome.error.detail);
  return outcome.ok;
}
