// Shared: a model that all tabs of an origin have together. `SLM2.share(options)`; documented in docs/client.md.
//
// Theory of operation. Who wants the same model (a Place, shared-line.js) waits for one lock; the tab that gets it is the
// host (shared-host.js), loads the model and serves all, itself among them. The browser takes the lock from a tab that
// closes or crashes and gives it to the next one, which loads the model from storage and calls the others.
//
//     seeking ──lead──▶ joining ──welcome──▶ joined       hello is said every second until it is answered
//        ▲                 ▲                    │
//        └─────────────────┴──── another lead ──┘         the running request is sent again
//
// A reply that has begun goes on from its ids (`continue_ids`): each delta brings those that are new. Its last known id is
// drawn once more, so that there is always one to draw; what has been told already is not told again. All executors and
// tabs give the same bits, so the reply is the one that it would have been. With log-probabilities, which ids alone don't
// bring back, it is made again from its beginning.

import { checkOptions, encodeRequest } from "./request.js";
import { Chat, load, prepare } from "./client.js";
import { Host } from "./shared-host.js";
import { hold, hostLock, Line, lineName, lobbyName, missing, newId, tabLock } from "./shared-line.js";
import { Cancelled, DeviceError, errorFrom, PROTOCOL_VERSION, ProtocolError } from "../worker/protocol.js";

/** @typedef {import("../worker/protocol.js").Channels} Channels */
/** @typedef {import("../worker/protocol.js").ChatMessage} ChatMessage */
/** @typedef {import("../worker/protocol.js").Slm2Error} AnyError */
/** @typedef {import("./client.js").LoadOptions} LoadOptions */
/** @typedef {import("./client.js").ChatOptions} ChatOptions */
/** @typedef {import("./client.js").Message} Message */
/** @typedef {import("./shared-line.js").Place} Place */
/** Why a model is this tab's own. @typedef {"locks" | "channels" | "silent"} Why */
/** @typedef {{shared: boolean, here: boolean, why: Why | null}} Sharing */

const HELLO_MS = 1000;
// Whom nobody has answered by then, though somebody holds the lock, loads its own.
const MAX_HELLOS = 10;
// A host that owes a reply and leaves so many questions in a row unanswered is taken for hung, and loses its place.
const PING_MS = 3000;
const MAX_PINGS = 4;

/** This document, among the tabs. */
const TAB = newId();

/** The model, shared with the other tabs of this origin that ask for the same: site and its version, model, executor,
 * context. Options and errors are those of `SLM2.load`.
 *
 * Where the browser has no locks or no channels, or the host does not answer, it is this tab's own: `info.sharing` tells.
 * @param {LoadOptions} [options] @returns {Promise<SharedSlm | Awaited<ReturnType<typeof load>>>} */
export async function share(options = {}) {
  const { site, ...asked } = await prepare(options);
  const { root, model, executor, max_seq_len } = asked;
  const name = JSON.stringify([PROTOCOL_VERSION, site.version, root.href, model, executor, max_seq_len]);
  /** @type {Place} */
  const place = { ...asked, site: site.version, name };
  let why = /** @type {Why | null} */ (missing());
  if (why === null) {
    const id = newId();
    const release = await hold(tabLock(id)).catch(() => null); // a page without an origin of its own may hold none
    if (release) {
      const slm = new SharedSlm(place, id, release, options);
      if (await slm.joined) return slm;
    }
    why = release ? "silent" : "locks";
  }
  const slm = await load(options);
  slm.info = Object.freeze({ ...slm.info, sharing: { shared: false, here: true, why } });
  return slm;
}

/** This tab as the host of a place: waits for its turn, as long as anybody in the tab wants the model. */
class Candidate {
  /** By place. @type {Map<string, Candidate>} */
  static all = new Map();
  /** @type {Host | null} */
  host = null;
  /** Who wants the model in this tab, by id, and how they are told of its end. @type {Map<string, (error: AnyError) => void>} */
  #users = new Map();
  #withdraw = new AbortController();
  #place;

  /** @param {Place} place @param {string} id @param {(error: AnyError) => void} fail @returns {Candidate} */
  static of(place, id, fail) {
    const known = Candidate.all.get(place.name);
    const candidate = known && !known.host?.isOver ? known : new Candidate(place);
    candidate.#users.set(id, fail);
    return candidate;
  }

  /** @param {Place} place */
  constructor(place) {
    this.#place = place;
    Candidate.all.set(place.name, this);
    this.#stand({ signal: this.#withdraw.signal });
  }

  /** @param {LockOptions} options */
  #stand(options) {
    const serve = () => {
      this.#isStealing = false;
      if (this.#users.size === 0) return undefined;
      this.host = new Host(this.#place, () => this.#users.size > 0);
      return this.host.ended;
    };
    const lost = async () => {
      if (this.host) {
        // Another tab took this one for hung, and has the model now.
        await this.host.end();
        this.host = null;
        if (this.#users.size > 0) return this.#stand({});
      } else if (this.#isStealing && !options.steal) return;
      this.#forget();
    };
    const over = () => {
      this.#forget();
      // It may have failed before they had a line to it.
      const error = this.host?.failure;
      if (error) for (const fail of [...this.#users.values()]) fail(error);
    };
    navigator.locks.request(hostLock(this.#place), options, serve).then(over, lost);
  }

  #isStealing = false;

  /** Takes the lock from a host that is hung. */
  steal() {
    if (this.host || this.#isStealing) return;
    this.#isStealing = true;
    this.#withdraw.abort();
    this.#stand({ steal: true });
  }

  #forget() {
    if (Candidate.all.get(this.#place.name) === this) Candidate.all.delete(this.#place.name);
  }

  /** One user less, `id` among the host's guests. Resolves when what it had here is free.
   * @param {string} id @returns {Promise<void>} */
  async release(id) {
    this.#users.delete(id);
    if (this.host) {
      await this.host.leave(id);
    } else if (this.#users.size === 0) {
      this.#forget();
      this.#withdraw.abort();
    }
  }
}

/** A model that is shared: `info`, `failure`, `chat` and `dispose` as of a model of one's own. */
class SharedSlm {
  /** As of a model of one's own; `sharing` tells where it runs. @type {Readonly<Record<string, any>>} */
  info = Object.freeze({});
  /** Whether it has come to be shared; false: nobody answered. Rejects as `load` does. @type {Promise<boolean>} */
  joined;
  #place;
  #id;
  #release;
  #candidate;
  #options;
  /** @type {(joined: boolean) => void} */
  #resolve = () => {};
  /** @type {(error: unknown) => void} */
  #reject = () => {};
  /** @type {Line<"tab_to_tabs", "tab_to_tabs">} */
  #lobby;
  /** @type {Line<"host_to_tab", "tab_to_host"> | null} */
  #line = null;
  /** @type {string | null} */
  #host = null;
  #isWelcome = false;
  /** Questions since the last answer. */
  #hellos = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #lastId = 0;
  /** The reply that runs or waits. @type {Course | null} */
  #course = null;
  /** @type {AnyError | null} */
  #ended = null;
  /** @type {Promise<void> | null} */
  #left = null;

  /** @param {Place} place @param {string} id whose lock is held @param {() => void} release @param {LoadOptions} options */
  constructor(place, id, release, options) {
    this.#place = place;
    this.#id = id;
    this.#release = release;
    this.#options = options;
    const { signal } = options;
    this.joined = new Promise((resolve, reject) => ([this.#resolve, this.#reject] = [resolve, reject]));
    const abort = () => this.#end(new Cancelled("cancelled", "load: cancelled by the page"));
    signal?.addEventListener("abort", abort);
    const settled = () => signal?.removeEventListener("abort", abort);
    this.joined.then(settled, settled);
    this.#lobby = new Line(
      lobbyName(place),
      "tab_to_tabs",
      "tab_to_tabs",
      (message) => {
        if (message.type === "lead") this.#follow(message);
      },
      (error) => console.error("slm2: a message that is none, in the lobby:", error),
    );
    this.#candidate = Candidate.of(place, id, (error) => this.#end(error));
    this.#greet();
    if (signal?.aborted) abort();
  }

  /** Why this model answers no more, or null while it does. */
  get failure() {
    return this.#ended;
  }

  /** The reply to `messages`, as it comes, when it is its turn: `options.onQueue` is called with the number of requests
   * before it. One at a time, as with a model of one's own.
   *
   * Cancelled while it waits, it rejects with Cancelled. Throws what `chat` of a model of one's own throws.
   * @param {Message[]} messages @param {ChatOptions} [options] @returns {Chat} */
  chat(messages, options = {}) {
    checkOptions(options);
    if (this.#ended) throw this.#ended;
    if (this.#course) {
      throw new ProtocolError("protocol.state", "chat: the reply before is still running", { state: "busy" });
    }
    const id = this.#lastId + 1;
    /** @type {ChatMessage} */
    const request = { type: "chat", id, ...encodeRequest(messages, options, this.info.model.name) };
    this.#lastId = id;
    const course = new Course(request, options, this.info.defaults.max_tokens, () => this.#cancel(id));
    this.#course = course;
    if (this.#isWelcome) this.#line?.say(course.request());
    this.#watch();
    return course.chat;
  }

  /** Not with a shared model. @returns {Promise<never>} */
  async parity() {
    throw new ProtocolError("protocol.state", "parity: found a shared model; allowed: one that SLM2.load gave", {
      state: "shared",
    });
  }

  /** Not with a shared model. @returns {Promise<never>} */
  parityRecord() {
    return this.parity();
  }

  /** Not with a shared model. @returns {Promise<never>} */
  parityOutput() {
    return this.parity();
  }

  /** Lets go of the model; it ends with the last of all tabs that lets go. Resolves when what this tab had of it alone is
   * free. A running or waiting reply ends with Cancelled. May be called again.
   * @returns {Promise<void>} */
  async dispose() {
    this.#fail(new Cancelled("cancelled", "chat: cancelled by the page"));
    this.#end(new ProtocolError("protocol.state", "chat: the model is disposed of", { state: "closed" }));
    await this.#left;
  }

  // --- the host ------------------------------------------------------------------------------------------

  /** Says hello until it is answered; to a host that owes a reply, now and then. */
  #greet() {
    clearTimeout(this.#timer);
    if (this.#ended) return;
    if (this.#isWelcome) {
      if (!this.#course || this.#isHost()) return;
      if (this.#hellos >= MAX_PINGS) this.#candidate.steal();
    } else if (this.#hellos >= MAX_HELLOS && Object.keys(this.info).length === 0 && !this.#isHost()) {
      this.#resolve(false);
      this.#end(new DeviceError("device.worker", "the tab that has the model does not answer"));
      return;
    }
    // Every fourth one asks who has the model: it may not be whom this tab has heard of.
    this.#hellos += 1;
    const host = this.#hellos % 4 === 0 ? null : this.#host;
    const { site } = this.#place;
    this.#lobby.say({ type: "hello", version: PROTOCOL_VERSION, site, host, tab: TAB, id: this.#id });
    this.#timer = setTimeout(() => this.#greet(), this.#isWelcome ? PING_MS : HELLO_MS);
  }

  #watch() {
    if (!this.#isWelcome) return;
    this.#hellos = 0;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#greet(), PING_MS);
  }

  #isHost = () => this.#host !== null && this.#candidate.host?.id === this.#host;

  /** @param {import("../worker/protocol.js").LeadMessage} lead */
  #follow({ host }) {
    if (this.#ended || host === this.#host) return;
    this.#line?.close();
    this.#host = host;
    this.#isWelcome = false;
    this.#hellos = 0;
    this.#line = new Line(
      lineName(host, this.#id),
      "host_to_tab",
      "tab_to_host",
      (message) => this.#receive(message),
      (error) => this.#end(error),
    );
    this.#greet();
  }

  /** @param {Channels["host_to_tab"]} message */
  #receive(message) {
    this.#hellos = 0;
    switch (message.type) {
      case "welcome":
        if (this.#isWelcome) return;
        this.#isWelcome = true;
        if (this.#course) this.#line?.say(this.#course.request());
        this.#watch();
        return;
      case "progress": {
        const { type, ...progress } = message;
        return this.#options.onProgress?.(progress);
      }
      case "warning":
        return this.#options.onWarning?.(errorFrom(message.code, message.message, message.detail));
      case "ready":
        this.#show(message.info);
        return this.#resolve(true);
      case "error":
        if (message.id === null) return this.#end(errorFrom(message.code, message.message, message.detail));
    }
    const course = this.#course;
    if (course === null || message.id !== course.chat.id) return;
    if (message.type === "done" || message.type === "error") this.#course = null;
    if (message.type === "done") {
      const { executor, adapter } = message.stats;
      this.#show({ ...this.info, executor, adapter });
    }
    course.hear(message);
  }

  /** @param {Record<string, any>} info */
  #show(info) {
    /** @type {Sharing} */
    const sharing = { shared: true, here: this.#isHost(), why: null };
    this.info = Object.freeze({ ...info, sharing });
  }

  /** @param {number} id */
  #cancel(id) {
    if (this.#isWelcome) return this.#line?.say({ type: "cancel", id });
    // Nobody runs it now; it is not sent again.
    this.#fail(new Cancelled("cancelled", "chat: cancelled while it waited"));
  }

  /** Ends the reply that runs or waits. @param {AnyError} error */
  #fail(error) {
    this.#course?.chat.fail(error);
    this.#course = null;
  }

  /** @param {AnyError} error */
  #end(error) {
    if (this.#ended) return;
    this.#ended = error;
    clearTimeout(this.#timer);
    this.#reject(error);
    this.#fail(error);
    if (this.#isWelcome && !this.#isHost()) this.#line?.say({ type: "leave" });
    this.#line?.close();
    this.#lobby.close();
    this.#left = this.#candidate.release(this.#id);
    this.#release();
  }
}

/** A reply's course through one host, or several. */
class Course {
  #chat;
  #request;
  #options;
  #defaultTokens;
  /** All ids that it has, of this run and those before. @type {number[]} */
  #ids = [];
  /** How many of them this run goes on from. */
  #nKept = 0;
  #runs = 0;
  /** Bytes that have been told, and of this run how many have come. */
  #told = { text: 0, reasoning: 0 };
  #come = { text: 0, reasoning: 0 };

  /** @param {ChatMessage} request @param {ChatOptions} options @param {number} maxTokens when the request has none
   * @param {() => void} cancel */
  constructor(request, options, maxTokens, cancel) {
    this.#request = request;
    this.#options = options;
    this.#defaultTokens = maxTokens;
    this.#chat = new Chat(request.id, options, cancel);
    this.#chat.result = this.#chat.result.then((result) => ({
      ...result,
      generated_ids: [...this.#ids.slice(0, this.#nKept), ...result.generated_ids],
      stats: { ...result.stats, runs: this.#runs },
    }));
    this.#chat.result.catch(() => {}); // who only iterates has heard of it
  }

  get chat() {
    return this.#chat;
  }

  /** What to ask a host for: all of it, or what it still lacks. @returns {ChatMessage} */
  request() {
    const { params, continue_ids: before, budget_tokens } = this.#request;
    this.#runs += 1;
    this.#nKept = "logprobs" in params ? 0 : Math.max(0, this.#ids.length - 1);
    this.#ids.length = this.#nKept;
    this.#come = { text: 0, reasoning: 0 };
    if (this.#nKept === 0) return this.#request;
    const maxTokens = /** @type {number} */ (params.max_tokens ?? this.#defaultTokens);
    return {
      ...this.#request,
      // The room that it left for the reply is that of the first run.
      budget_tokens: budget_tokens ?? this.#chat.ledger.budget_tokens,
      continue_ids: Uint32Array.from([...(before ?? []), ...this.#ids]),
      params: { ...params, max_tokens: maxTokens - this.#nKept },
    };
  }

  /** @param {Extract<Channels["host_to_tab"], {id: number | null}>} message */
  hear(message) {
    const chat = this.#chat;
    switch (message.type) {
      case "queued":
        return this.#tellPlace(message.place);
      case "context":
        if ("budget_tokens" in chat.ledger) return; // of a run before: it is the same
        break;
      case "delta": {
        const { part, data, ids, n_tokens } = message;
        this.#ids.push(...ids);
        const skipped = Math.min(data.byteLength, Math.max(0, this.#told[part] - this.#come[part]));
        this.#come[part] += data.byteLength;
        this.#told[part] = Math.max(this.#told[part], this.#come[part]);
        const nTokens = Math.max(chat.nTokens, this.#nKept + n_tokens);
        return chat.receive({ ...message, data: data.subarray(skipped), n_tokens: nTokens });
      }
    }
    chat.receive(message);
  }

  /** @param {number} place */
  #tellPlace(place) {
    try {
      this.#options.onQueue?.(place);
    } catch (error) {
      this.#chat.break(error);
    }
  }
}
