// Engine: one loaded model for all who ask of it on a page, one after the other; other tabs' pages share it, too.
//
//     idle ----> loading ----> ready          a model that failed, or could not be loaded, is loaded again by the
//      ^            |            |            next who asks
//      +------------+------------+
//
// Theory of operation. Who wants replies holds the engine (`hold`, `release`); nothing is loaded before `load` or
// `run`, and the model is disposed of a while after nobody holds it any more. Those who wait are served in turns: of
// each holder the one that has waited longest, and the holders round and round, so that one who asks much does not
// keep the others waiting for all of it.

import { SLM2 } from "./client.js";
import { badInput } from "./request.js";
import { Cancelled } from "../worker/protocol.js";

/** @typedef {Awaited<ReturnType<typeof SLM2.load | typeof SLM2.share>>} Slm */
/** @typedef {import("./client.js").Progress} Progress */
/** What makes two engines the same; `share`: with the origin's other tabs, which is the default, or on this page alone.
 * @typedef {{model?: string, root?: string | URL, workers?: string | URL, executor?: import("./client.js").LoadOptions["executor"],
 *   max_seq_len?: number, share?: "tabs" | "page"}} EngineOptions */
/** @typedef {{progress?: (progress: Progress) => void, state?: (state: State) => void,
 *   warning?: (warning: import("./client.js").AnyError) => void}} Listener */
/** @typedef {"idle" | "loading" | "ready"} State */
/** @typedef {{begin: () => void}} Waiting */

// Holders that come back by then (an element that is moved) find the model as it was.
const LINGER_MS = 1000;
const SHARES = ["tabs", "page"];

/** @type {Map<string, Engine>} */
const engines = new Map();

/** The engine with these options, the same for all who ask for it. @param {EngineOptions} [options] */
export function engineOf(options = {}) {
  const { model, root, workers, executor, max_seq_len, share } = options;
  // What is no URL is SLM2.load's to refuse.
  const urls = [root, workers].map((url) => {
    if (url === undefined) return "";
    return URL.canParse(url, document.baseURI) ? new URL(url, document.baseURI).href : `?${url}`;
  });
  const key = JSON.stringify([model ?? "", ...urls, executor ?? "", max_seq_len ?? 0, share ?? SHARES[0]]);
  const found = engines.get(key) ?? new Engine(options);
  engines.set(key, found);
  return found;
}

export class Engine {
  /** @type {EngineOptions} */
  #options;
  /** @type {Map<object, Listener>} */
  #holders = new Map();
  /** @type {Promise<Slm> | null} */
  #loading = null;
  /** @type {Slm | null} */
  #slm = null;
  /** @type {AbortController} */
  #abort = new AbortController();
  /** Of each who asked, oldest first. @type {Map<object, Waiting[]>} */
  #waiting = new Map();
  /** When each was served last, as a count. @type {WeakMap<object, number>} */
  #served = new WeakMap();
  #nServed = 0;
  #busy = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;

  /** @param {EngineOptions} options */
  constructor(options) {
    this.#options = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  }

  /** @returns {State} */
  get state() {
    if (this.#slm && !this.#slm.failure) return "ready";
    return this.#loading ? "loading" : "idle";
  }

  /** What runs, once it does. */
  get info() {
    return this.#slm?.info ?? null;
  }

  /** From now on `holder` wants it, and hears of it. @param {object} holder @param {Listener} [listener] */
  hold(holder, listener = {}) {
    clearTimeout(this.#timer);
    this.#holders.set(holder, listener);
  }

  /** @param {object} holder */
  release(holder) {
    this.#holders.delete(holder);
    if (this.#holders.size > 0) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#dispose(), LINGER_MS);
  }

  /** The model, loaded once for all who ask; rejects as SLM2.load, and with InputError for another `share`.
   * @returns {Promise<Slm>} */
  load() {
    if (this.#slm?.failure) this.#slm = null;
    if (this.#slm) return Promise.resolve(this.#slm);
    if (!this.#loading) {
      const abort = (this.#abort = new AbortController());
      // Not at once: whoever hears of it finds it loading.
      this.#loading = Promise.resolve().then(() => this.#load(abort));
    }
    return this.#loading;
  }

  /** @param {AbortController} abort @returns {Promise<Slm>} */
  async #load(abort) {
    const { signal } = abort;
    const { share = SHARES[0], ...options } = this.#options;
    this.#tell("state", "loading");
    try {
      if (!SHARES.includes(share)) throw badInput("input.params", "options.share", share, SHARES.join(" | "));
      const slm = await SLM2[share === "page" ? "load" : "share"]({
        ...options,
        signal,
        onProgress: (progress) => this.#tell("progress", progress),
        onWarning: (warning) => this.#tell("warning", warning),
      });
      if (signal.aborted) {
        void slm.dispose();
        throw cancelled();
      }
      this.#slm = slm;
      return slm;
    } finally {
      if (this.#abort === abort) {
        this.#loading = null;
        this.#tell("state", this.state);
      }
    }
  }

  /** What `job` gives, which is called with the model when it is the turn of `who`.
   *
   * Rejects with Cancelled when `signal` is aborted before; with what `load` and `job` reject with.
   * @template T @param {object} who @param {(slm: Slm) => Promise<T>} job @param {AbortSignal} [signal]
   * @returns {Promise<T>} */
  async run(who, job, signal) {
    await this.#turn(who, signal);
    try {
      const slm = await unlessAborted(this.load(), signal);
      return await job(slm);
    } finally {
      this.#busy = false;
      this.#next();
    }
  }

  /** @param {object} who @param {AbortSignal | undefined} signal @returns {Promise<void>} */
  #turn(who, signal) {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(cancelled());
      const leave = () => {
        const list = (this.#waiting.get(who) ?? []).filter((each) => each !== waiting);
        if (list.length > 0) this.#waiting.set(who, list);
        else this.#waiting.delete(who);
        reject(cancelled());
      };
      /** @type {Waiting} */
      const waiting = {
        begin: () => {
          signal?.removeEventListener("abort", leave);
          resolve();
        },
      };
      signal?.addEventListener("abort", leave, { once: true });
      this.#waiting.set(who, [...(this.#waiting.get(who) ?? []), waiting]);
      this.#next();
    });
  }

  /** Lets the next one begin: of those who wait, who was served longest ago, or has come first. */
  #next() {
    if (this.#busy || this.#waiting.size === 0) return;
    const served = (/** @type {object} */ who) => this.#served.get(who) ?? 0;
    const who = [...this.#waiting.keys()].reduce((a, b) => (served(b) < served(a) ? b : a));
    const [waiting, ...rest] = this.#waiting.get(who) ?? [];
    this.#busy = true;
    this.#served.set(who, ++this.#nServed);
    if (rest.length > 0) this.#waiting.set(who, rest);
    else this.#waiting.delete(who);
    waiting.begin();
  }

  /** @param {keyof Listener} what @param {any} value */
  #tell(what, value) {
    for (const listener of [...this.#holders.values()]) {
      try {
        listener[what]?.(value);
      } catch (error) {
        reportError(error); // a listener's own
      }
    }
  }

  #dispose() {
    this.#abort.abort();
    this.#loading = null; // who asks from now on begins another one
    void this.#slm?.dispose();
    this.#slm = null;
  }
}

const cancelled = () => new Cancelled("cancelled", "chat: cancelled by the page");

/** @template T @param {Promise<T>} promise @param {AbortSignal | undefined} signal @returns {Promise<T>} */
function unlessAborted(promise, signal) {
  if (!signal) return promise;
  return new Promise((resolve, reject) => {
    const abort = () => reject(cancelled());
    signal.addEventListener("abort", abort);
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
    if (signal.aborted) abort();
  });
}
