// Session in the shape of the Prompt API: `LanguageModel` as browsers that bring a model have it, on a model of ours.
// docs/prompt-api.md says where it differs.
//
//     import { LanguageModel } from "./web/prompt-api.js";
//     const session = await LanguageModel.create({ initialPrompts: [{ role: "system", content: "Be brief." }] });
//     for await (const chunk of session.promptStreaming("What is 2+2?")) document.body.append(chunk);
//
// Theory of operation. A session is a list of messages; the engine (engine.js), one for all sessions and elements of a
// page with the same options, keeps in its KV cache what a prompt has in common with the last one. A prompt is
// measured by its ledger: the engine assembles and counts it, and the reply is stopped before its first token. A
// prompt counts only when its reply has come: an aborted one leaves the session as it was.

import { Cancelled, InputError } from "./client.js";
import { engineOf } from "./engine.js";
import { fetchSite } from "../worker/site.js";
import { domError, quotaError, translate } from "./prompt/errors.js";
import { formatOf, joined, messagesOf, type } from "./prompt/messages.js";
import { checkSampling, MAX_TEMPERATURE, samplingOf, thinkingOf } from "./prompt/sampling.js";

/** @typedef {import("./engine.js").Engine} Engine */
/** @typedef {import("./engine.js").Slm} Slm */
/** @typedef {import("./client.js").ChatOptions} ChatOptions */
/** @typedef {import("./prompt/messages.js").Turn} Turn */
/** @typedef {string | {role: string, content: string | {type: string, value: any}[], prefix?: boolean}[]} Prompt */
/** What we have beside the Prompt API's: which model, and what else slm.chat takes.
 * @typedef {import("./engine.js").EngineOptions & Pick<ChatOptions, "seed" | "max_tokens" | "top_p" | "min_p" |
 *   "repetition_penalty" | "presence_penalty" | "frequency_penalty" | "stop" | "profile">} OwnOptions */
/** @typedef {{type: string, languages?: string[]}} Expected */
/** @typedef {{expectedInputs?: Expected[], expectedOutputs?: Expected[], tools?: object[], temperature?: number,
 *   topK?: number, samplingMode?: string, thinking?: import("./prompt/sampling.js").Thinking, slm2?: OwnOptions}} CoreOptions */
/** @typedef {CoreOptions & {signal?: AbortSignal, monitor?: (monitor: EventTarget) => void,
 *   initialPrompts?: Prompt}} CreateOptions */
/** @typedef {{signal?: AbortSignal, responseConstraint?: object | null, omitResponseConstraintInput?: boolean,
 *   thinking?: import("./prompt/sampling.js").Thinking}} PromptOptions */
/** @typedef {"unavailable" | "downloadable" | "downloading" | "available"} Availability */
/** @typedef {{engine: Engine, params: Record<string, any>, shown: {samplingMode: string | null, temperature: number,
 *   topK: number}, window: number, thinks: boolean}} Setup */

const ENGINE_OPTIONS = ["model", "root", "workers", "executor", "max_seq_len", "share"];
const CHAT_OPTIONS =
  "seed max_tokens top_p min_p repetition_penalty presence_penalty frequency_penalty stop profile".split(" ");
const SECRET = Symbol("made by create and clone");

export class LanguageModel extends EventTarget {
  /** @type {((event: Event) => void) | null} */
  oncontextoverflow = null;
  /** The older name. @type {((event: Event) => void) | null} */
  onquotaoverflow = null;
  #setup;
  /** @type {Turn[]} */
  #messages;
  /** How many of them came with `create`, and stay. */
  #nInitial;
  #usage = 0;
  #end = new AbortController();

  /** Not for pages: `LanguageModel.create` makes sessions.
   * @param {symbol} secret @param {Setup} setup @param {Turn[]} messages @param {number} nInitial @param {number} usage */
  constructor(secret, setup, messages, nInitial, usage) {
    super();
    if (secret !== SECRET) throw new TypeError("LanguageModel: allowed: await LanguageModel.create()");
    this.#setup = setup;
    this.#messages = messages;
    this.#nInitial = nInitial;
    this.#usage = usage;
    setup.engine.hold(this);
  }

  /** Whether a model with these options can be had, and at what cost: `available` when it is loaded in this page,
   * `downloading` while it is being loaded, `downloadable` when its site answers, else `unavailable`.
   *
   * Rejects with TypeError and RangeError for options that are none.
   * @param {CoreOptions} [options] @returns {Promise<Availability>} */
  static async availability(options = {}) {
    checkCore(options);
    if (unsupported(options) !== null) return "unavailable";
    const engine = engineFor(options);
    const { thinking } = options;
    if (engine.state === "ready") return fits(thinking, engine.info?.template.thinking) ? "available" : "unavailable";
    try {
      const manifest = await manifestOf(options.slm2 ?? {});
      if (!fits(thinking, manifest.template?.family !== "chatml")) return "unavailable";
    } catch {
      return "unavailable";
    }
    return engine.state === "loading" ? "downloading" : "downloadable";
  }

  /** The model's own sampling, or null without a model. Loads nothing but its manifest.
   * @param {{slm2?: OwnOptions}} [options] */
  static async params(options = {}) {
    try {
      const { generation, config } = await manifestOf(options.slm2 ?? {});
      const maxTopK = config.vocab_size;
      const { temperature = 1, top_k = 0 } = generation.defaults;
      return { defaultTopK: top_k || maxTopK, maxTopK, defaultTemperature: temperature, maxTemperature: MAX_TEMPERATURE };
    } catch {
      return null;
    }
  }

  /** A session; the model is loaded first where it isn't.
   *
   * Rejects with the signal's reason, TypeError, RangeError, and a DOMException: NotSupportedError,
   * QuotaExceededError, NetworkError, OperationError.
   * @param {CreateOptions} [options] @returns {Promise<LanguageModel>} */
  static async create(options = {}) {
    checkCore(options);
    const { signal, monitor, initialPrompts = [], slm2 = {}, thinking } = options;
    checkSignal(signal);
    if (monitor !== undefined && typeof monitor !== "function") throw type("monitor", monitor, "a function");
    if (!Array.isArray(initialPrompts)) throw type("initialPrompts", initialPrompts, "a list of messages");
    const messages = messagesOf(initialPrompts, true);
    const refused = unsupported(options);
    if (refused) throw domError("NotSupportedError", refused);
    signal?.throwIfAborted();
    const engine = engineFor(options);
    const waiter = {};
    const report = monitor ? reportTo(monitor) : null;
    engine.hold(waiter, { progress: (progress) => report?.note(progress) });
    try {
      return await orAborted(async () => {
        const { info } = await engine.load();
        signal?.throwIfAborted(); // nobody waits for the session any more
        report?.end();
        const { params, shown } = samplingOf(checkSampling(options), /** @type {any} */ (info));
        const own = Object.fromEntries(CHAT_OPTIONS.filter((name) => name in slm2).map((name) => [name, /** @type {any} */ (slm2)[name]]));
        const thinks = info.template.thinking;
        const all = { ...own, ...params, ...thinkingOf(thinking, thinks) };
        const setup = { engine, params: all, shown, window: info.max_seq_len, thinks };
        const session = new LanguageModel(SECRET, setup, messages, messages.length, 0);
        try {
          if (messages.length > 0) await session.#begin(signal);
        } catch (error) {
          session.destroy();
          throw error;
        }
        signal?.addEventListener("abort", () => session.destroy(signal.reason), { signal: session.#end.signal });
        return session;
      }, signal);
    } finally {
      engine.release(waiter);
    }
  }

  /** Tokens of the context that are taken. */
  get contextUsage() {
    return this.#usage;
  }

  /** Tokens of the context. */
  get contextWindow() {
    return this.#setup.window;
  }

  /** The older name of `contextUsage`. */
  get inputUsage() {
    return this.#usage;
  }

  /** The older name of `contextWindow`. */
  get inputQuota() {
    return this.#setup.window;
  }

  get temperature() {
    return this.#setup.shown.temperature;
  }

  get topK() {
    return this.#setup.shown.topK;
  }

  get samplingMode() {
    return this.#setup.shown.samplingMode;
  }

  /** The whole reply. @param {Prompt} input @param {PromptOptions} [options] @returns {Promise<string>} */
  async prompt(input, options = {}) {
    return this.#ask(input, options, () => {});
  }

  /** The reply as it comes. Cancelling the stream ends it. @param {Prompt} input @param {PromptOptions} [options]
   * @returns {ReadableStream<string>} */
  promptStreaming(input, options = {}) {
    const stopper = new AbortController();
    const { signal } = options;
    const both = signal instanceof AbortSignal ? AbortSignal.any([signal, stopper.signal]) : stopper.signal;
    return new ReadableStream({
      start: (controller) => {
        const all = signal === undefined || signal instanceof AbortSignal ? { ...options, signal: both } : options;
        this.#ask(input, all, (delta) => controller.enqueue(delta)).then(
          () => controller.close(),
          (error) => controller.error(error),
        );
      },
      cancel: (reason) => stopper.abort(reason),
    });
  }

  /** Adds to the conversation without asking. @param {Prompt} input @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<void>} */
  async append(input, { signal } = {}) {
    await this.#turn(signal, async (slm, stopped) => {
      const added = messagesOf(input, this.#messages.length === 0);
      await this.#fit(added, async (messages, overflow) => {
        const ledger = await ledgerOf(slm, messages, this.#setup.params, stopped);
        if (isWhole(ledger)) this.#usage = ledger.prompt_tokens;
        else overflow(ledger);
      });
    });
  }

  /** How many tokens of the context a prompt would take. @param {Prompt} input @param {PromptOptions} [options]
   * @returns {Promise<number>} */
  async measureContextUsage(input, options = {}) {
    checkConstraint(options);
    return this.#turn(options.signal, async (slm, stopped) => {
      const added = messagesOf(input, this.#messages.length === 0);
      if (added.length === 0) return 0;
      try {
        const { offered_tokens } = await ledgerOf(slm, [...this.#messages, ...added], this.#setup.params, stopped);
        return Math.max(0, offered_tokens - this.#usage);
      } catch (error) {
        // More than the context, whatever is left out: then what is asked alone.
        if (error instanceof InputError && Number.isFinite(error.detail.turn_tokens)) return error.detail.turn_tokens;
        throw error;
      }
    });
  }

  /** The older name of `measureContextUsage`. @param {Prompt} input @param {PromptOptions} [options] */
  measureInputUsage(input, options) {
    return this.measureContextUsage(input, options);
  }

  /** A session of its own with the same past. @param {{signal?: AbortSignal}} [options] @returns {Promise<LanguageModel>} */
  async clone({ signal } = {}) {
    return this.#turn(signal, async () => {
      const messages = this.#messages.map((message) => ({ ...message }));
      return new LanguageModel(SECRET, this.#setup, messages, this.#nInitial, this.#usage);
    });
  }

  /** Ends the session: what runs is rejected with AbortError, or `reason`; nothing can be asked any more.
   * @param {unknown} [reason] */
  destroy(reason) {
    if (this.#end.signal.aborted) return;
    this.#end.abort(reason);
    this.#setup.engine.release(this);
  }

  /** Whether there is room for the initial messages, and how much they take. @param {AbortSignal | undefined} signal */
  #begin(signal) {
    return this.#turn(signal, async (slm, stopped) => {
      const ledger = await ledgerOf(slm, this.#messages, this.#setup.params, stopped);
      if (!isWhole(ledger)) throw quotaError(ledger.offered_tokens, ledger.budget_tokens);
      this.#usage = ledger.prompt_tokens;
    });
  }

  /** What `job` gives, when it is this session's turn; errors as the Prompt API has them.
   * @template T @param {AbortSignal | undefined} signal @param {(slm: Slm, signal: AbortSignal) => Promise<T>} job
   * @returns {Promise<T>} */
  async #turn(signal, job) {
    checkSignal(signal);
    if (this.#end.signal.aborted) throw domError("InvalidStateError", "the session has been destroyed");
    const stopped = signal ? AbortSignal.any([signal, this.#end.signal]) : this.#end.signal;
    return orAborted(() => this.#setup.engine.run(this, (slm) => job(slm, stopped), stopped), stopped);
  }

  /** @param {Prompt} input @param {PromptOptions} options @param {(delta: string) => void} tell
   * @returns {Promise<string>} */
  async #ask(input, options, tell) {
    const format = checkConstraint(options);
    const { thinks, params } = this.#setup;
    const thinking = options.thinking === undefined ? {} : thinkingOf(options.thinking, thinks);
    return this.#turn(options.signal, async (slm, signal) => {
      const added = messagesOf(input, this.#messages.length === 0);
      if (added.length === 0) added.push({ role: "user", content: "" });
      return this.#fit(added, async (messages, overflow) => {
        let isTooLong = false;
        const chat = slm.chat(joined(messages), {
          ...params,
          ...thinking,
          ...(format && { response_format: format }),
          signal,
          onContext: (ledger) => {
            isTooLong = !isWhole(ledger);
            if (!isTooLong) return;
            overflow(ledger);
            chat.cancel();
          },
        });
        let text = "";
        try {
          for await (const delta of chat) {
            if (isTooLong) continue; // it was stopped too late
            text += delta;
            tell(delta);
          }
        } catch (error) {
          if (!isTooLong || !(error instanceof Cancelled)) throw error; // stopped above; no host may be left to say so
        }
        signal.throwIfAborted();
        if (isTooLong) return null;
        const { reason, stats } = await chat.result;
        if (format && !["stop_token", "stop_string"].includes(reason)) {
          throw domError("SyntaxError", `the reply ended by ${reason} before it was what responseConstraint wants`);
        }
        this.#usage = stats.prompt_tokens + stats.generated_tokens;
        return { role: "assistant", content: text };
      });
    });
  }

  /** Does `work` with the conversation and what is added to it. Where that is too much, the oldest exchanges after the
   * initial ones are left out, and the event tells of it. What `work` gives is added, too; nothing is kept of what fails.
   * @param {Turn[]} added
   * @param {(messages: Turn[], overflow: (ledger: Record<string, any>) => void) => Promise<Turn | null | void>} work
   * @returns {Promise<string>} */
  async #fit(added, work) {
    const initial = this.#messages.slice(0, this.#nInitial);
    let past = this.#messages.slice(this.#nInitial);
    for (let overflowed = false; ; overflowed = true) {
      /** @type {Record<string, any> | null} */
      let excess = null;
      const said = await work([...initial, ...past, ...added], (ledger) => (excess = ledger));
      if (excess === null) {
        this.#messages = [...initial, ...past, ...added, ...(said ? [said] : [])];
        if (overflowed) this.#tellOverflow();
        return said?.content ?? "";
      }
      const { offered_tokens, budget_tokens } = /** @type {any} */ (excess);
      const shorter = withoutOldest(past);
      if (shorter.length === past.length) throw quotaError(offered_tokens, budget_tokens);
      past = shorter;
    }
  }

  #tellOverflow() {
    for (const name of /** @type {const} */ (["contextoverflow", "quotaoverflow"])) {
      const event = new Event(name);
      this[`on${name}`]?.(event);
      this.dispatchEvent(event);
    }
  }
}

/** The ledger of a prompt of these messages. Nothing is generated: the reply is stopped when the prompt is known.
 * @param {Slm} slm @param {Turn[]} messages @param {Record<string, any>} params @param {AbortSignal} signal
 * @returns {Promise<import("./client.js").Ledger>} */
async function ledgerOf(slm, messages, params, signal) {
  const asked = joined(messages);
  if (asked.at(-1)?.role !== "user") asked.push({ role: "user", content: "" });
  /** @type {import("./client.js").Ledger | null} */
  let ledger = null;
  const chat = slm.chat(asked, {
    ...params,
    signal,
    onContext: (found) => {
      ledger = found;
      chat.cancel();
    },
  });
  await chat.result.catch((error) => {
    if (!ledger || !(error instanceof Cancelled)) throw error; // stopped above; no host may be left to say so
  });
  signal.throwIfAborted();
  return chat.ledger;
}

/** @param {Record<string, any>} ledger */
const isWhole = ({ parts }) => parts.every((/** @type {any} */ { state }) => state === "kept");

/** Without the oldest question and what follows it up to the next. @param {Turn[]} past */
function withoutOldest(past) {
  const next = past.findIndex(({ role }, i) => i > 0 && role === "user" && past[i - 1].role !== "user");
  return next < 0 ? [] : past.slice(next);
}

/** What `work` gives; once the signal is aborted, its reason, whatever `work` says then.
 * @template T @param {() => Promise<T>} work @param {AbortSignal | undefined} signal @returns {Promise<T>} */
async function orAborted(work, signal) {
  signal?.throwIfAborted();
  let abort = () => {};
  /** @type {Promise<never>} */
  const aborted = new Promise((_, reject) => (abort = () => reject(signal?.reason)));
  aborted.catch(() => {});
  signal?.addEventListener("abort", abort);
  try {
    const result = await Promise.race([work(), aborted]);
    signal?.throwIfAborted();
    return result;
  } catch (error) {
    signal?.throwIfAborted();
    throw translate(error);
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** @param {CoreOptions} options */
function engineFor({ slm2 = {} }) {
  return engineOf(Object.fromEntries(ENGINE_OPTIONS.filter((name) => name in slm2).map((name) => [name, /** @type {any} */ (slm2)[name]])));
}

/** The manifest of the model, for what can be known before it is loaded. @param {OwnOptions} own @returns {Promise<any>} */
async function manifestOf({ root = new URL("../", import.meta.url), model }) {
  const base = new URL(root, document.baseURI);
  const name = model ?? (await fetchSite(base)).default_model;
  const response = await fetch(new URL(`models/${encodeURIComponent(name)}/manifest.json`, base), { cache: "no-cache" });
  if (!response.ok) throw new Error(`HTTP status ${response.status}`);
  return response.json();
}

/** Throws TypeError and RangeError. @param {CoreOptions} options */
function checkCore(options) {
  if (typeof options !== "object" || options === null) throw type("options", options, "an object");
  checkSampling(options);
  const { slm2 = {}, expectedInputs = [], expectedOutputs = [], tools = [] } = options;
  if (typeof slm2 !== "object" || slm2 === null) throw type("options.slm2", slm2, "an object");
  const other = Object.keys(slm2).find((name) => ![...ENGINE_OPTIONS, ...CHAT_OPTIONS].includes(name));
  if (other !== undefined) throw type(`options.slm2.${other}`, /** @type {any} */ (slm2)[other], [...ENGINE_OPTIONS, ...CHAT_OPTIONS].join(" | "));
  for (const [name, list] of Object.entries({ expectedInputs, expectedOutputs, tools })) {
    if (!Array.isArray(list)) throw type(`options.${name}`, list, "a list");
  }
  for (const { languages = [] } of [...expectedInputs, ...expectedOutputs]) Intl.getCanonicalLocales(languages);
}

/** What of the options no model here has, or null. @param {CoreOptions} options */
function unsupported({ expectedInputs = [], expectedOutputs = [], tools = [] }) {
  const other = [...expectedInputs, ...expectedOutputs].find(({ type: kind }) => kind !== "text");
  if (other) return `expected type: found ${other.type}; allowed: text`;
  return tools.length > 0 ? "tools: found some; allowed: none" : null;
}

/** @param {import("./prompt/sampling.js").Thinking | undefined} thinking @param {boolean | undefined} can */
function fits(thinking, can) {
  try {
    thinkingOf(thinking, can ?? false);
    return true;
  } catch (error) {
    if (error instanceof TypeError) throw error;
    return false;
  }
}

/** @param {PromptOptions} options */
function checkConstraint({ responseConstraint, omitResponseConstraintInput = false }) {
  const format = formatOf(responseConstraint);
  if (omitResponseConstraintInput && !format) {
    throw type("omitResponseConstraintInput", true, "nothing without responseConstraint");
  }
  return format;
}

/** @param {unknown} signal */
function checkSignal(signal) {
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw type("signal", signal, "an AbortSignal");
}

/** Calls `monitor` with an object that tells of the bytes that arrive, as a share of all.
 * @param {(monitor: EventTarget) => void} monitor */
function reportTo(monitor) {
  const target = new EventTarget();
  monitor(target);
  /** @type {Map<string, import("./client.js").Progress>} */
  const stages = new Map();
  let told = -1;
  const tell = (/** @type {number} */ loaded) => {
    if (loaded <= told) return;
    told = loaded;
    target.dispatchEvent(new ProgressEvent("downloadprogress", { lengthComputable: true, loaded, total: 1 }));
  };
  tell(0);
  return {
    /** @param {import("./client.js").Progress} progress */
    note(progress) {
      if (progress.unit !== "bytes" || progress.total === 0) return;
      stages.set(progress.stage, progress);
      // A share of one stage would be a lie while the size of the other isn't known.
      if (!stages.has("runtime") || !stages.has("weights")) return;
      const sum = (/** @type {"done" | "total"} */ what) => [...stages.values()].reduce((all, each) => all + each[what], 0);
      tell(Math.min(sum("done") / sum("total"), 0.999));
    },
    end: () => tell(1),
  };
}
