// Client: a model as an object. What a page uses, ours included; documented in docs/client.md.
//
//     const slm = await SLM2.load({ onProgress: ({ stage, done, total }) => … });
//     const chat = slm.chat([{ role: "user", content: "What is 2+2?" }], { temperature: 0 });
//     for await (const delta of chat) reply.textContent += delta;
//     const { reason, transcript } = await chat.result;
//     slm.dispose();
//
// Everything heavy happens in two workers; this side encodes, decodes, and keeps promises.

import { badInput, checkOptions, encodeRequest } from "./request.js";
import { decode, Decoder, encode } from "./text.js";
import { scriptUrl } from "./trusted.js";
import {
  AssetError,
  Cancelled,
  check,
  CONTROL_BYTES,
  CONTROL_WORDS,
  DeviceError,
  errorFrom,
  EXECUTORS,
  PARITY_SIZES,
  PARITY_STAGES,
  PROTOCOL_VERSION,
  ProtocolError,
} from "../worker/protocol.js";
import { end } from "../worker/life.js";
import { fetchSite } from "../worker/site.js";

export {
  AssetError,
  Cancelled,
  DeviceError,
  ERRORS,
  FormatError,
  InputError,
  PARITY_SIZES,
  PARITY_STAGES,
  ProtocolError,
  RANGES,
  REASONS,
  Slm2Error,
  STAGES,
} from "../worker/protocol.js";

/** @typedef {import("../worker/protocol.js").Channels} Channels */
/** @typedef {import("../worker/protocol.js").Executor} Executor */
/** @typedef {import("../worker/protocol.js").Reason} Reason */
/** @typedef {import("../worker/protocol.js").Slm2Error} AnyError */
/** @typedef {Omit<import("../worker/protocol.js").ProgressMessage, "type">} Progress */
/** A JSON value; or JSON text, whose numbers stay as they are spelled.
 * @typedef {string | Record<string, any>[]} Json */
/** @typedef {{role: string, content?: string | null, reasoning_content?: string | null, tool_calls?: Json | null,
 *   tool_call_id?: string, name?: string}} Message */
/** @typedef {{id: string, relevance: number, content: string}} Evidence */
/** What a prompt holds; docs/prompt.md. @typedef {Record<string, any>} Ledger */
/** A call of a tool as the model wrote it, its arguments JSON text; or what stood there and why it is none.
 * @typedef {{name: string, arguments: string} | {text: string, error: string}} ToolCall */
/** Natural logarithm of a token's probability. @typedef {{id: number, bytes: number[], logprob: number}} Logprob */
/** Of a generated token, and of the likeliest in its place. @typedef {Logprob & {top: Logprob[]}} TokenLogprobs */
/** @typedef {{reason: Reason, detail: Record<string, any>, text: string, reasoning_content: string | null,
 *   tool_calls: ToolCall[], generated_ids: number[], logprobs: TokenLogprobs[] | null, transcript: string,
 *   stats: Record<string, any>, ledger: Ledger}} Result */
/** @typedef {{
 *   model?: string, root?: string | URL, workers?: string | URL, executor?: Executor, max_seq_len?: number, signal?: AbortSignal,
 *   onProgress?: (progress: Progress) => void, onWarning?: (warning: AnyError) => void,
 * }} LoadOptions */
/** What may go into the prompt beside the messages. @typedef {{
 *   tools?: Json, enable_thinking?: boolean, preserve_thinking?: boolean,
 *   local_state?: string, evidence?: Evidence[], budget_tokens?: number,
 * }} PromptOptions */
/** @typedef {PromptOptions & {
 *   temperature?: number, top_k?: number, top_p?: number, min_p?: number, repetition_penalty?: number,
 *   presence_penalty?: number, frequency_penalty?: number, banned_ids?: number[],
 *   profile?: "transformers" | "llama.cpp", seed?: number | bigint | string, max_tokens?: number,
 *   max_reasoning_tokens?: number | null, stop?: string | string[],
 *   response_format?: string | Record<string, any> | null, logprobs?: number | null, invalid_utf8?: "end" | "show",
 *   continue_from?: string | Pick<Result, "transcript">, continue_ids?: number[] | Uint32Array,
 *   signal?: AbortSignal, onPrefill?: (done: number, total: number) => void,
 *   onContext?: (ledger: Ledger) => void, onReasoning?: (delta: string) => void, onQueue?: (place: number) => void,
 * }} ChatOptions */

/** @typedef {import("../worker/protocol.js").ParityStage} ParityStage */
/** @typedef {import("../worker/protocol.js").ParitySize} ParitySize */
/** What a stage came to: `marks` has eight hexadecimal digits for each vector.
 * @typedef {{name: ParityStage, vectors: number, digest: string, marks: string, seconds: number}} ParityStageResult */
/** @typedef {{
 *   stages?: readonly ParityStage[], size?: ParitySize, signal?: AbortSignal,
 *   onProgress?: (progress: {stage: ParityStage, done: number, total: number}) => void,
 *   onStage?: (result: ParityStageResult) => void,
 * }} ParityOptions */
/** @typedef {{suite: number, size: ParitySize, artifacts: Record<string, any>, executor: string, adapter: string,
 *   stages: ParityStageResult[]}} ParityResult */
/** @typedef {{id: string, input: Record<string, any>, output: any}} ParityVector */

/** What a reply is told by.
 * @typedef {Extract<Channels["worker_to_page"], {type: "context" | "prefill" | "delta" | "done" | "error"}>} Relayed */

/** What ends a request. @type {readonly string[]} */
const ENDS = ["done", "parity_done", "parity_vector", "error"];

// What this script came with; `load` hears of a failure.
const HOME = new URL("../", import.meta.url);
let ownSite = fetchSite(HOME);
ownSite.catch(() => {});

// What this origin has stored of models (stored.js); no page needs it to load one.
const stored = () => import("./stored.js");
export const storage = Object.freeze({
  list: async () => (await stored()).list(),
  /** @param {string} name */
  remove: async (name) => (await stored()).remove(name),
  estimate: async () => (await stored()).estimate(),
  persist: async () => (await stored()).persist(),
});

// A worker that has not ended itself by then is ended.
const DISPOSE_MS = 1000;

const LOAD_OPTIONS = ["model", "root", "workers", "executor", "max_seq_len", "signal", "onProgress", "onWarning"];

/** What is loaded: `max_seq_len` null is the engine's own.
 * @typedef {{root: URL, workers: URL, executor: Executor, max_seq_len: number | null, model: string,
 *   site: import("../worker/site.js").Site}} Prepared */

/** The options of `load`, checked, and the site that they are of.
 * @param {LoadOptions} options @returns {Promise<Prepared>} */
export async function prepare(options) {
  checkOptions(options);
  const other = Object.keys(options).find((name) => !LOAD_OPTIONS.includes(name));
  if (other !== undefined) {
    throw badInput("input.params", `options.${other}`, /** @type {any} */ (options)[other], LOAD_OPTIONS.join(" | "));
  }
  const { signal, executor = "auto" } = options;
  const root = options.root === undefined ? HOME : anyUrl(options.root, "options.root");
  const workers = ownUrl(options.workers ?? root, options.workers === undefined ? "options.root" : "options.workers");
  if (!EXECUTORS.includes(executor)) {
    throw badInput("input.params", "options.executor", executor, EXECUTORS.join(" | "));
  }
  if (options.model !== undefined && typeof options.model !== "string") {
    throw badInput("input.model", "options.model", options.model, "a string");
  }
  const { max_seq_len = null } = options;
  if (max_seq_len !== null && (!Number.isSafeInteger(max_seq_len) || max_seq_len < 1)) {
    throw badInput("input.params", "options.max_seq_len", max_seq_len, "a whole number, at least 1");
  }
  throwIfAborted(signal);
  const site = await siteOf(root);
  throwIfAborted(signal);
  return { root, workers, executor, max_seq_len, model: options.model ?? site.default_model, site };
}

/** The model, loaded and ready to answer.
 *
 * Rejects with an error of ../worker/protocol.js: AssetError, FormatError, DeviceError, InputError,
 * ProtocolError; Cancelled after `signal`.
 * @param {LoadOptions} [options] @returns {Promise<Slm>} */
export async function load(options = {}) {
  const { root, workers, executor, max_seq_len, model, site } = await prepare(options);
  const { signal, onProgress, onWarning } = options;
  const control = sharedWords();
  const crew = new Crew(workers);
  let abort = () => {};
  try {
    const engine = crew.start("worker/worker.js", "slm2 engine");
    const loader = crew.start("worker/loader.js", "slm2 loader");
    return await new Promise((resolve, reject) => {
      abort = () => reject(cancelled("load"));
      signal?.addEventListener("abort", abort);
      if (signal?.aborted) abort(); // while the options were checked
      for (const [each, channel] of /** @type {const} */ ([
        [engine, "worker_to_page"],
        [loader, "loader_to_page"],
      ])) {
        listen(each, channel, reject, (message) => {
          if (message.type === "progress") {
            const { type, ...progress } = message;
            onProgress?.(progress);
          } else if (message.type === "warning") {
            onWarning?.(errorFrom(message.code, message.message, message.detail));
          } else if (message.type === "thread") {
            crew.startThread(message.port);
          } else if (message.type === "ready") {
            loader.worker.terminate();
            resolve(new Slm(crew, engine, control, message.info));
          } else if (message.type === "error") {
            reject(errorFrom(message.code, message.message, message.detail));
          }
        });
      }
      const { port1, port2 } = new MessageChannel();
      /** @type {Channels["page_to_worker"]} */
      const init = {
        type: "init",
        version: PROTOCOL_VERSION,
        site: site.version,
        root: root.href,
        executor,
        max_seq_len,
        control: /** @type {SharedArrayBuffer | null} */ (control?.buffer ?? null),
        port: port1,
      };
      /** @type {Channels["page_to_loader"]} */
      const request = {
        type: "load",
        version: PROTOCOL_VERSION,
        site: site.version,
        root: root.href,
        model,
        shared: control !== null,
        port: port2,
      };
      engine.worker.postMessage(init, [port1]);
      loader.worker.postMessage(request, [port2]);
    });
  } catch (error) {
    crew.end();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** The model, shared with the other tabs of this origin that ask for the same: tabs/share.js, which no page needs that
 * has a model of its own. Options and errors are those of `load`.
 * @param {LoadOptions} [options] */
async function share(options = {}) {
  const tabs = await import("./tabs/share.js").catch((error) => {
    throw new AssetError("asset.unreachable", `tabs/share.js: ${error}`, { reason: String(error) });
  });
  return tabs.share(options);
}

/** A loaded model. */
class Slm {
  /** What runs: executor, adapter, model, defaults, memory, timings. @type {Readonly<Record<string, any>>} */
  info;
  /** What this origin has stored of models; `SLM2.storage` is the same. */
  storage = storage;
  #crew;
  #worker;
  #gone;
  #control;
  #lastId = 0;
  /** @type {Pick<Chat | Parity, "id" | "receive" | "fail"> | null} */
  #chat = null;
  /** @type {Promise<void> | null} */
  #disposed = null;
  /** Why nothing can be asked any more. @type {AnyError | null} */
  #ended = null;
  /** @internal Resolves when it has ended by itself, to why. @type {Promise<AnyError>} */
  ended;
  /** @type {(error: AnyError) => void} */
  #tellEnd = () => {};

  /** @internal @param {Crew} crew @param {Life} engine @param {Int32Array | null} control @param {Record<string, any>} info */
  constructor(crew, engine, control, info) {
    this.ended = new Promise((resolve) => (this.#tellEnd = resolve));
    this.info = Object.freeze(info);
    this.#crew = crew;
    this.#worker = engine.worker;
    this.#gone = engine.gone;
    this.#control = control;
    listen(engine, "worker_to_page", (error) => this.#end(error), (message) => this.#receive(message));
  }

  /** Why this model answers no more, or null while it does: its worker died, or it was disposed of. */
  get failure() {
    return this.#ended;
  }

  /** The reply to `messages`, as it comes. One at a time.
   *
   * Throws InputError for what is wrong with the arguments, ProtocolError `protocol.state` when a reply is
   * still running or the model is disposed of.
   * @param {Message[]} messages @param {ChatOptions} [options] @returns {Chat} */
  chat(messages, options = {}) {
    checkOptions(options);
    if (this.#ended) throw this.#ended;
    if (this.#chat) {
      throw new ProtocolError("protocol.state", "chat: the reply before is still running", { state: "busy" });
    }
    const id = this.#lastId + 1;
    /** @type {Channels["page_to_worker"]} */
    const request = { type: "chat", id, ...encodeRequest(messages, options, this.info.model.name) };
    this.#lastId = id;
    const chat = new Chat(id, options, () => this.#cancel(id));
    this.#chat = chat;
    this.#worker.postMessage(request);
    return chat;
  }

  /** @internal What tabs/host.js asks for other tabs: a request that is encoded already. `receive` gets each of its messages, the
   * last of which is `done` or `error`. Gives what cancels it. Throws as `chat`.
   * @param {import("../worker/protocol.js").ChatMessage} request @param {(message: Relayed) => void} receive
   * @returns {() => void} */
  relay(request, receive) {
    if (this.#ended) throw this.#ended;
    if (this.#chat) throw new ProtocolError("protocol.state", "chat: the reply before is still running", { state: "busy" });
    const id = ++this.#lastId;
    /** @param {any} error */
    const fail = ({ code, message, detail }) => receive({ type: "error", id, code, message, detail });
    this.#chat = { id, receive, fail };
    this.#worker.postMessage({ ...request, id });
    return () => this.#cancel(id);
  }

  /** Runs stages of the parity suite on this model and device: docs/parity.md.
   *
   * Rejects with InputError for what is wrong with the options, ProtocolError `protocol.state` while something
   * else is running, Cancelled after `signal`.
   * @param {ParityOptions} [options] @returns {Promise<ParityResult>} */
  async parity(options = {}) {
    checkOptions(/** @type {any} */ (options));
    checkParity(options, ["stages", "size", "onProgress", "onStage", "signal"]);
    const { stages = PARITY_STAGES, size = "reduced" } = options;
    return this.#runParity({ type: "parity", stages: [...stages], size }, options);
  }

  /** One vector of the parity suite: what `marks[index]` of that stage stands for.
   * @param {ParityStage} stage @param {number} index @param {ParitySize} [size]
   * @returns {Promise<ParityVector>} */
  async parityRecord(stage, index, size = "full") {
    checkParity({ stages: [stage], size }, ["stages", "size"]);
    if (!Number.isSafeInteger(index) || index < 0) throw badInput("input.params", "index", index, "0 or more");
    return this.#runParity({ type: "parity_record", stage, index, size }, {});
  }

  /** What any input of a stage comes to: to find the smallest that two engines differ on.
   *
   * Rejects with InputError `input.json` for what is no input of the stage.
   * @param {ParityStage} stage @param {Record<string, any>} input @returns {Promise<any>} */
  async parityOutput(stage, input) {
    checkParity({ stages: [stage] }, ["stages"]);
    const data = encode(JSON.stringify(input), "input");
    return (await this.#runParity({ type: "parity_output", stage, input: data }, {})).output;
  }

  /** @param {any} request @param {ParityOptions} options @returns {Promise<any>} */
  async #runParity(request, options) {
    if (this.#ended) throw this.#ended;
    if (this.#chat) {
      throw new ProtocolError("protocol.state", "parity: a request before is still running", { state: "busy" });
    }
    const id = ++this.#lastId;
    const parity = new Parity(id, options, () => this.#cancel(id));
    this.#chat = parity;
    this.#worker.postMessage({ ...request, id });
    return parity.result;
  }

  /** Ends the workers and frees their memory; resolves when they have been ended. A running reply ends with
   * Cancelled. May be called again.
   * @returns {Promise<void>} */
  dispose() {
    return (this.#disposed ??= this.#dispose());
  }

  async #dispose() {
    if (this.#ended) return;
    this.#chat?.fail(cancelled("chat"));
    this.#chat = null;
    this.#ended = new ProtocolError("protocol.state", "chat: the model is disposed of", { state: "closed" });
    this.#cancel(this.#lastId);
    this.#worker.postMessage({ type: "dispose" });
    await Promise.race([this.#gone, new Promise((resolve) => setTimeout(resolve, DISPOSE_MS))]);
    this.#crew.end();
  }

  /** @param {number} id */
  #cancel(id) {
    if (this.#control) Atomics.store(this.#control, CONTROL_WORDS.cancelled_id, id);
    else if (id > 0) this.#worker.postMessage({ type: "cancel", id });
  }

  /** @param {Channels["worker_to_page"]} message */
  #receive(message) {
    if (message.type === "progress" || message.type === "ready") return;
    if (message.type === "thread") {
      if (!this.#ended) this.#crew.startThread(message.port);
      return;
    }
    if (message.type === "error" && message.id === null) {
      this.#end(errorFrom(message.code, message.message, message.detail));
      return;
    }
    const chat = this.#chat;
    if (chat === null || message.id !== chat.id) return;
    if (ENDS.includes(message.type)) this.#chat = null;
    if (message.type === "done") {
      // It may run on another device now.
      const { executor, adapter } = message.stats;
      this.info = Object.freeze({ ...this.info, executor, adapter });
    }
    chat.receive(/** @type {any} */ (message));
  }

  /** @param {AnyError} error */
  #end(error) {
    if (this.#ended) return;
    this.#ended = error;
    this.#crew.end();
    this.#chat?.fail(error);
    this.#chat = null;
    this.#tellEnd(error);
  }
}

/** A reply under way: iterate it for its text, await `result` for the rest.
 *
 * Aborting its signal, calling `cancel` and leaving a `for await` loop all stop it within one forward pass. A
 * stopped reply is a reply: the iteration ends, and `result` resolves with reason `cancelled` and the text so
 * far. Errors reject both.
 * @implements {AsyncIterableIterator<string>} */
class Chat {
  /** Tokens generated so far. */
  nTokens = 0;
  /** Resolves when the reply has ended. @type {Promise<Result>} */
  result;
  /** @type {(result: Result) => void} */
  #resolve = () => {};
  /** @type {(error: unknown) => void} */
  #reject = () => {};
  /** @type {Record<"text" | "reasoning", {decoder: Decoder, text: string | null}>} */
  #parts = {
    text: { decoder: new Decoder(), text: "" },
    reasoning: { decoder: new Decoder(), text: null },
  };
  /** What the prompt holds, once that is known. @type {Ledger} */
  ledger = {};
  /** Text not yet read. @type {string[]} */
  #deltas = [];
  #over = false;
  /** @type {() => void} */
  #wake = () => {};
  /** The call of `next` before: they answer one after the other. @type {Promise<unknown>} */
  #before = Promise.resolve();
  #cancel;
  #options;

  /** @internal @param {number} id @param {ChatOptions} options @param {() => void} cancel */
  constructor(id, options, cancel) {
    const { signal } = options;
    this.id = id;
    this.#cancel = cancel;
    this.#options = options;
    this.result = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    // Who only iterates has heard of the error; nobody is told of an unhandled rejection.
    this.result.catch(() => {});
    const abort = () => this.cancel();
    signal?.addEventListener("abort", abort);
    this.result.then(
      () => signal?.removeEventListener("abort", abort),
      () => signal?.removeEventListener("abort", abort),
    );
    if (signal?.aborted) queueMicrotask(abort);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @returns {Promise<IteratorResult<string, undefined>>} */
  next() {
    const step = this.#before.then(() => this.#next());
    this.#before = step.catch(() => {});
    return step;
  }

  /** @returns {Promise<IteratorResult<string, undefined>>} */
  async #next() {
    while (this.#deltas.length === 0 && !this.#over) {
      await new Promise((resolve) => (this.#wake = () => resolve(undefined)));
    }
    const value = this.#deltas.shift();
    if (value !== undefined) return { done: false, value };
    await this.result;
    return { done: true, value: undefined };
  }

  /** What `for await` calls when it is left early: stops the reply and waits until the model is free.
   * @returns {Promise<IteratorResult<string, undefined>>} */
  async return() {
    this.cancel();
    await this.result.catch(() => {});
    this.#deltas = [];
    return { done: true, value: undefined };
  }

  /** Stops the reply within one forward pass. */
  cancel() {
    if (!this.#over) this.#cancel();
  }

  /** What a callback threw, or why a message could not be read: told when the worker has ended the reply.
   * @type {{error: unknown} | null} */
  #broken = null;

  /** @internal @param {Relayed} message */
  receive(message) {
    if (this.#broken) {
      if (message.type === "done" || message.type === "error") this.fail(this.#broken.error);
      return;
    }
    try {
      switch (message.type) {
        case "context":
          this.ledger = message.ledger;
          this.#options.onContext?.(this.ledger);
          break;
        case "prefill":
          this.#options.onPrefill?.(message.done, message.total);
          break;
        case "delta":
          this.nTokens = message.n_tokens;
          this.#push(message.part, this.#parts[message.part].decoder.push(message.data));
          break;
        case "done": {
          for (const { decoder } of Object.values(this.#parts)) decoder.end();
          const { reason, stats, more } = message;
          const transcript = decode(message.transcript);
          const { detail, generated_ids } = JSON.parse(transcript);
          const [text, reasoning_content] = [this.#parts.text.text ?? "", this.#parts.reasoning.text];
          const { tool_calls, logprobs } = more;
          const said = { reason, detail, text, reasoning_content, tool_calls, generated_ids, logprobs };
          this.#settle(() => this.#resolve({ ...said, transcript, stats, ledger: this.ledger }));
          break;
        }
        case "error":
          this.fail(errorFrom(message.code, message.message, message.detail));
      }
    } catch (error) {
      this.break(error);
      if (message.type === "done" || message.type === "error") this.fail(error);
    }
  }

  /** A callback has thrown. @internal @param {unknown} error */
  break(error) {
    this.#broken ??= { error };
    this.cancel();
  }

  /** @internal @param {unknown} error */
  fail(error) {
    this.#settle(() => this.#reject(error));
  }

  /** @param {"text" | "reasoning"} part @param {string} text */
  #push(part, text) {
    if (text === "") return;
    this.#parts[part].text = (this.#parts[part].text ?? "") + text;
    if (part === "reasoning") return void this.#options.onReasoning?.(text);
    this.#deltas.push(text);
    this.#wake();
  }

  /** @param {() => void} settle */
  #settle(settle) {
    this.#over = true;
    settle();
    this.#wake();
  }
}

/** A run of the parity suite, or of one vector of it. */
class Parity {
  /** @type {Promise<any>} */
  result;
  /** @type {(result: any) => void} */
  #resolve = () => {};
  /** @type {(error: unknown) => void} */
  #reject = () => {};
  /** @type {ParityStageResult[]} */
  #stages = [];
  /** What a callback threw: told when the worker has ended. @type {{error: unknown} | null} */
  #broken = null;
  #options;
  #cancel;

  /** @param {number} id @param {ParityOptions} options @param {() => void} cancel */
  constructor(id, options, cancel) {
    const { signal } = options;
    this.id = id;
    this.#options = options;
    this.#cancel = cancel;
    this.result = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    signal?.addEventListener("abort", cancel);
    const over = () => signal?.removeEventListener("abort", cancel);
    this.result.then(over, over);
    if (signal?.aborted) queueMicrotask(cancel);
  }

  /** @param {Channels["worker_to_page"]} message */
  receive(message) {
    try {
      switch (message.type) {
        case "parity_progress": {
          const { stage, done, total } = message;
          if (!this.#broken) this.#options.onProgress?.({ stage, done, total });
          break;
        }
        case "parity_stage": {
          const { stage: name, vectors, digest, marks, seconds } = message;
          this.#stages.push({ name, vectors, digest, marks, seconds });
          if (!this.#broken) this.#options.onStage?.(/** @type {any} */ (this.#stages.at(-1)));
          break;
        }
        case "parity_done":
          this.#settle({ ...message.info, stages: this.#stages });
          break;
        case "parity_vector":
          this.#settle(JSON.parse(decode(message.record)));
          break;
        case "error":
          this.fail(this.#broken?.error ?? errorFrom(message.code, message.message, message.detail));
      }
    } catch (error) {
      this.#broken = { error };
      this.#cancel();
    }
  }

  /** @param {any} result */
  #settle(result) {
    if (this.#broken) this.#reject(this.#broken.error);
    else this.#resolve(result);
  }

  /** @param {unknown} error */
  fail(error) {
    this.#reject(error);
  }
}

/** @param {Record<string, any>} options @param {string[]} names those that there are */
function checkParity(options, names) {
  const { stages = PARITY_STAGES, size = "reduced" } = options;
  const other = Object.keys(options).find((name) => !names.includes(name));
  if (other !== undefined) throw badInput("input.params", `options.${other}`, options[other], names.join(" | "));
  const known = Array.isArray(stages) && stages.length > 0 && new Set(stages).size === stages.length;
  if (!known || !stages.every((stage) => PARITY_STAGES.includes(stage))) {
    throw badInput("input.params", "stages", stages, `each once: ${PARITY_STAGES.join(" | ")}`);
  }
  if (!PARITY_SIZES.includes(size)) throw badInput("input.params", "size", size, PARITY_SIZES.join(" | "));
}

/** Checks each message of a worker, and turns a dying worker into an error.
 * @template {"worker_to_page" | "loader_to_page"} C
 * @param {Life} life @param {C} channel
 * @param {(error: AnyError) => void} fail @param {(message: Channels[C]) => void} receive */
function listen({ worker, gone }, channel, fail, receive) {
  void gone.then(() => fail(new DeviceError("device.worker", `${channel}: the worker has ended`)));
  worker.onmessage = ({ data }) => {
    try {
      receive(check(channel, data));
    } catch (error) {
      fail(/** @type {AnyError} */ (error));
    }
  };
  worker.onmessageerror = () => fail(new DeviceError("device.worker", `${channel}: a message could not be read`));
  worker.onerror = (event) => {
    event.preventDefault();
    // Without a message it is no exception in the script: the script itself could not be had.
    const died = typeof event.message === "string" && event.message !== "";
    fail(
      died
        ? new DeviceError("device.worker", `${channel}: ${event.message}`, { line: event.lineno })
        : new AssetError("asset.unreachable", `${channel}: the worker's script could not be loaded`),
    );
  };
}

/** A worker, and the promise of its end. @typedef {{worker: Worker, gone: Promise<void>}} Life */

/** The addresses of workers that have been started and not yet heard of. @type {Set<string>} */
const starting = new Set();

/** A script's address with a number where another worker is just being started from it: in WebKit two that begin at
 * once share the answer, and the second one then gets none of its imports by the page's service worker.
 * @param {URL} url */
function ownAddress(url) {
  for (let n = 2; starting.has(url.href); n += 1) url.search = `?${n}`;
  starting.add(url.href);
  return url;
}

/** The workers of one model. */
class Crew {
  /** @type {{worker: Worker, started: () => void}[]} */
  #workers = [];
  #root;

  /** @param {URL} root */
  constructor(root) {
    this.#root = root;
  }

  /** @param {string} script @param {string} what @returns {Life} */
  start(script, what) {
    const url = ownAddress(new URL(script, this.#root));
    const name = `${what} ${Math.random().toString(36).slice(2)}`; // nobody else's: it is that of a lock
    try {
      const worker = new Worker(scriptUrl(url), { type: "module", name });
      let isStarting = true;
      const started = () => {
        if (isStarting) starting.delete(url.href);
        isStarting = false;
      };
      this.#workers.push({ worker, started });
      for (const type of ["message", "error"]) worker.addEventListener(type, started, { once: true });
      return { worker, gone: end(worker, name) };
    } catch (error) {
      starting.delete(url.href);
      throw new DeviceError("device.worker", `${what}: ${error}`, { url: url.href });
    }
  }

  /** Starts a thread for the engine, which hears on `port` of its state. @param {MessagePort} port */
  startThread(port) {
    const { worker } = this.start("worker/wasm/thread.js", "slm2 thread");
    worker.onmessage = () => worker.postMessage(port, [port]);
    worker.onerror = (event) => {
      event.preventDefault();
      port.postMessage(event.message || "could not be started");
    };
  }

  /** Ends them all; what they have said already is of no interest. */
  end() {
    for (const { worker, started } of this.#workers) {
      worker.onmessage = null;
      worker.terminate();
      started();
    }
    this.#workers = [];
  }
}

/** site.json: of the site that this script is of, as it was then; of another one as it is now.
 * @param {URL} root */
function siteOf(root) {
  if (root.href !== HOME.href) return fetchSite(root);
  return ownSite.catch(() => (ownSite = fetchSite(HOME)));
}

/** @param {string | URL} url @param {string} place */
function anyUrl(url, place) {
  const found = URL.canParse(url, document.baseURI) ? new URL(url, document.baseURI) : null;
  if (found && /^https?:$/.test(found.protocol)) return found;
  throw badInput("input.params", place, url, "a URL of http or https");
}

/** A folder that workers may be started from: browsers take them from the page's own origin only.
 * @param {string | URL} url @param {string} place */
function ownUrl(url, place) {
  const found = URL.canParse(url, document.baseURI) ? new URL(url, document.baseURI) : null;
  if (found?.origin === location.origin) return found;
  const foreign = "; for a site of another origin, options.workers: a folder of this one with the workers\u2019 scripts";
  throw badInput("input.params", place, url, `a URL of ${location.origin}${place === "options.root" ? foreign : ""}`);
}

/** The control words, or null where the page may share no memory. The constructor is what counts: there are
 * browsers that are isolated and have none. */
function sharedWords() {
  return typeof SharedArrayBuffer === "function" ? new Int32Array(new SharedArrayBuffer(CONTROL_BYTES)) : null;
}

/** @param {string} what */
const cancelled = (what) => new Cancelled("cancelled", `${what}: cancelled by the page`);

/** @param {AbortSignal | undefined} signal */
function throwIfAborted(signal) {
  if (signal?.aborted) throw cancelled("load");
}

/** The entry to everything: `await SLM2.load(options)`. */
export const SLM2 = Object.freeze({ load, share, storage });
export { Chat, Slm };
