// Shared model: what `SLM2.share` gives; the tab's end of it.
//
//     seeking ──lead──▶ joining ──welcome──▶ joined       hello is said every second until it is answered
//        ▲                 ▲                    │
//        └─────────────────┴──── another lead ──┘         the request that waits or runs is sent again
//
// A host that owes something (the model, a reply) is asked every few seconds whether it is there. One that is mute loses its
// place to this tab; but a tab that has never been answered makes do with a model of its own: maybe nobody can be heard here.

import { checkOptions, encodeRequest } from "../request.js";
import { storage } from "../client.js";
import { Candidate } from "./candidate.js";
import { Course } from "./course.js";
import { Line, lineName, lobbyName } from "./line.js";
import { newId } from "../ids.js";
import { Cancelled, DeviceError, errorFrom, PROTOCOL_VERSION, ProtocolError } from "../../worker/protocol.js";

/** @typedef {import("../../worker/protocol.js").Channels} Channels */
/** @typedef {import("../../worker/protocol.js").Slm2Error} AnyError */
/** @typedef {import("../client.js").LoadOptions} LoadOptions */
/** @typedef {import("./line.js").Place} Place */

const HELLO_MS = 1000;
// So many questions in a row that nobody answered, though somebody holds the lock, and this tab does without.
const MAX_HELLOS = 6;
const PING_MS = 3000;
// So many questions in a row that a host has left unanswered, and it is taken for hung.
const MAX_PINGS = 4;
// So many hosts lost one after the other before they were ready, or with the same reply, and it may be what they died of.
const MAX_LOST_LOADING = 2;
const MAX_TRIES = 3;
// So many questions without a word of the request, and a host that answers has forgotten it: it took this tab for gone.
const MAX_UNHEARD = 2;

/** This document, among the tabs. */
const TAB = newId();

/** A model that is shared: `info`, `failure`, `storage`, `chat` and `dispose` as of a model of one's own. */
export class SharedSlm {
  /** As of a model of one's own; `sharing` tells where it runs. @type {Readonly<Record<string, any>>} */
  info = Object.freeze({});
  storage = storage;
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
  /** Whether a host has ever answered. */
  #isHeard = false;
  #isReady = false;
  /** Whether this host has been. */
  #isHostReady = false;
  /** Hosts in a row that were not, and are no more. */
  #nLost = 0;
  /** Questions since the last answer. */
  #hellos = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #lastId = 0;
  /** The reply that runs or waits. @type {Course | null} */
  #course = null;
  /** Questions since the host has last said something of it. */
  #unheard = 0;
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
   * Stopped while it waits, it rejects with Cancelled. Throws what `chat` of a model of one's own throws.
   * @param {import("../client.js").Message[]} messages @param {import("../client.js").ChatOptions} [options]
   * @returns {import("../client.js").Chat} */
  chat(messages, options = {}) {
    checkOptions(options);
    if (this.#ended) throw this.#ended;
    if (this.#course) {
      throw new ProtocolError("protocol.state", "chat: the reply before is still running", { state: "busy" });
    }
    /** @type {import("../../worker/protocol.js").ChatMessage} */
    const request = { type: "chat", id: this.#lastId + 1, ...encodeRequest(messages, options, this.info.model.name) };
    const course = new Course(request, options, () => this.#cancel(course));
    this.#course = course;
    this.#send();
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

  /** Says hello until it is answered; to a host that owes something, now and then. */
  #greet() {
    clearTimeout(this.#timer);
    const isOwed = !this.#isWelcome || !this.#isReady || this.#course;
    if (this.#ended || !isOwed) return;
    if (this.#hellos >= (this.#isWelcome ? MAX_PINGS : MAX_HELLOS)) {
      if (!this.#isHeard) {
        this.#resolve(false);
        return this.#end(new DeviceError("device.worker", "the tab that has the model does not answer"));
      }
      if (this.#course?.isCancelled) this.#stop();
      this.#candidate.steal();
    }
    // Every fourth one asks who has the model: it may not be whom this tab has heard of.
    this.#hellos += 1;
    this.#unheard += 1;
    const host = this.#hellos % 4 === 0 ? null : this.#host;
    const { site } = this.#place;
    this.#lobby.say({ type: "hello", version: PROTOCOL_VERSION, site, host, tab: TAB, id: this.#id });
    this.#timer = setTimeout(() => this.#greet(), this.#isWelcome ? PING_MS : HELLO_MS);
  }

  /** The host has been heard; it is asked again in a while. */
  #watch() {
    this.#hellos = 0;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#greet(), PING_MS);
  }

  /** Sends the request to the host, if there is one of each. */
  #send() {
    if (!this.#course || !this.#isWelcome) return;
    const { isCancelled, tries } = this.#course;
    if (isCancelled) return this.#stop();
    if (tries >= MAX_TRIES) return this.#fail(lost("chat", "makes the reply", tries));
    this.#unheard = 0;
    this.#lastId += 1;
    this.#line?.say(this.#course.send(this.#lastId));
    this.#watch();
  }

  /** @param {import("../../worker/protocol.js").LeadMessage} lead */
  #follow({ host }) {
    if (this.#ended || host === this.#host) return;
    if (this.#host !== null && !this.#isHostReady) this.#nLost += 1;
    if (this.#nLost >= MAX_LOST_LOADING) return this.#end(lost("load", "loads the model", this.#nLost));
    this.#line?.close();
    this.#host = host;
    this.#isHostReady = false;
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
        this.#isHeard = true;
        if (this.#isWelcome) return this.#unheard >= MAX_UNHEARD ? this.#send() : undefined;
        this.#isWelcome = true;
        this.#watch();
        return this.#send();
      case "progress": {
        const { type, ...progress } = message;
        return this.#tell(() => this.#options.onProgress?.(progress));
      }
      case "warning": {
        const { code, message: text, detail } = message;
        return this.#tell(() => this.#options.onWarning?.(errorFrom(code, text, detail)));
      }
      case "ready":
        this.#isReady = this.#isHostReady = true;
        this.#nLost = 0;
        this.#show(message.info);
        return this.#resolve(true);
      case "error":
        if (message.id === null) return this.#end(errorFrom(message.code, message.message, message.detail));
    }
    const course = this.#course;
    if (course === null || message.id !== course.id) return; // of a request that was given up
    this.#unheard = 0;
    if (message.type === "done" || message.type === "error") this.#course = null;
    if (message.type === "done") {
      const { executor, adapter } = message.stats;
      this.#show({ ...this.info, executor, adapter });
    }
    course.hear(message);
  }

  /** Calls the page. What it throws ends loading, as with `load`; later on it is the page's own. @param {() => void} call */
  #tell(call) {
    try {
      call();
    } catch (error) {
      if (this.#isReady) reportError(error);
      else this.#end(/** @type {AnyError} */ (error));
    }
  }

  /** @param {Record<string, any>} info */
  #show(info) {
    const here = this.#host !== null && this.#candidate.host?.id === this.#host;
    /** @type {import("./share.js").Sharing} */
    const sharing = { shared: true, here, why: null };
    this.info = Object.freeze({ ...info, sharing });
  }

  /** @param {Course} course */
  #cancel(course) {
    if (course !== this.#course) return;
    if (!this.#isWelcome) return this.#stop();
    course.isCancelled = true;
    this.#line?.say({ type: "cancel", id: course.id });
  }

  /** Ends a reply that was stopped, and that no host runs. */
  #stop() {
    const course = this.#course;
    this.#course = null;
    course?.stop();
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
    this.#line?.say({ type: "leave" });
    this.#line?.close();
    this.#lobby.close();
    this.#left = this.#candidate.release(this.#id);
    this.#release();
  }
}

/** @param {string} what @param {string} does what a host did when it was lost @param {number} times */
const lost = (what, does, times) =>
  new DeviceError("device.worker", `${what}: the tab that ${does} was lost ${times} times in a row`, { lost: times });
