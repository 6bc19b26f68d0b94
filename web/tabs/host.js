// Host: the one tab that has the model, and serves the others (and itself, by the same way).
//
//     lock got ──▶ loading ──▶ serving: one request at a time, the rest in a fair queue
//                     └─ fails, or the engine dies: all are told, and it ends
//                     └─ nobody uses it any more: it ends
//
// It says `lead` in the lobby when it begins, and to whoever asks, if it has the lock still: one that wakes up may hear
// questions before it hears that another tab has taken its place. A tab that says `hello` to this host gets a line of its
// own: `welcome`, then what loading tells, `ready`, and whatever belongs to its request, of which it has one at a time. The
// id of a request is the tab's; towards the engine it is another. When a tab's lock can be had, the tab is no more: its
// request leaves the queue.

import { load } from "../client.js";
import { FairQueue } from "./fairqueue.js";
import { hold, isHeld, Line, lineName, lobbyName, tabLock } from "./line.js";
import { newId } from "../ids.js";
import { checkProtocol, checkSite } from "../../worker/site.js";
import { Cancelled, errorFrom, PROTOCOL_VERSION, ProtocolError } from "../../worker/protocol.js";

/** @typedef {import("../../worker/protocol.js").Channels} Channels */
/** @typedef {import("../../worker/protocol.js").ChatMessage} ChatMessage */
/** @typedef {Awaited<ReturnType<typeof load>>} Engine */
/** @typedef {{id: string, tab: string, line: Line<"tab_to_host", "host_to_tab">, left: AbortController}} Guest */
/** @typedef {{tab: string, guest: Guest, request: ChatMessage, place: number | null}} Entry */

export class Host {
  /** Resolves when the engine's memory is free and the lock may go. @type {Promise<void>} */
  ended;
  /** Why it ended, if it failed. @type {import("../../worker/protocol.js").Slm2Error | null} */
  failure = null;
  id = newId();
  #settle = () => {};
  #isOver = false;
  #place;
  #isWanted;
  #lobby;
  /** Lets go of the lock with this host's id. @type {Promise<() => void>} */
  #held;
  #loading = new AbortController();
  /** @type {Engine | null} */
  #engine = null;
  /** What loading has told, of each stage the last, for who comes later. @type {Map<string, Channels["host_to_tab"]>} */
  #told = new Map();
  /** @type {Map<string, Guest>} */
  #guests = new Map();
  /** @type {FairQueue<Entry>} */
  #queue = new FairQueue();
  /** @type {{entry: Entry, cancel: () => void} | null} */
  #running = null;

  /** @param {import("./line.js").Place} place
   * @param {() => boolean} isWanted whether this tab is about to use it, though it has not said hello */
  constructor(place, isWanted) {
    this.#place = place;
    this.#isWanted = isWanted;
    this.ended = new Promise((resolve) => (this.#settle = resolve));
    this.#lobby = new Line(
      lobbyName(place),
      "tab_to_tabs",
      "tab_to_tabs",
      (message) => this.#hear(message),
      (error) => console.error("slm2: a message that is none, in the lobby:", error),
    );
    this.#held = hold(tabLock(this.id));
    void this.#lead();
    void this.#load();
  }

  get isOver() {
    return this.#isOver;
  }

  async #lead() {
    await this.#held;
    if (!(await isHeld(this.#place, this.id)) || this.#isOver) return;
    this.#lobby.say({ type: "lead", version: PROTOCOL_VERSION, site: this.#place.site, host: this.id });
  }

  async #load() {
    const { name, site, ...options } = this.#place;
    try {
      const engine = await load({
        ...options,
        max_seq_len: options.max_seq_len ?? undefined,
        signal: this.#loading.signal,
        onProgress: (progress) => this.#tell(progress.stage, { type: "progress", ...progress }),
        onWarning: ({ code, message, detail }) =>
          this.#tell(message, { type: "warning", code: /** @type {any} */ (code), message, detail }),
      });
      if (this.#isOver) return void (await engine.dispose());
      this.#engine = engine;
      void engine.ended.then((error) => this.#fail(error));
      checkSite(site, engine.info.site, "engine");
      this.#sayToAll({ type: "ready", info: engine.info });
      this.#serve();
    } catch (error) {
      this.#fail(error);
    }
  }

  /** @param {Channels["tab_to_tabs"]} message */
  #hear(message) {
    if (message.type !== "hello") return;
    if (message.host === null) return void this.#lead();
    if (message.host !== this.id) return;
    const guest = this.#guests.get(message.id) ?? this.#admit(message);
    try {
      checkProtocol(message, "host");
      checkSite(message.site, this.#place.site, "host");
    } catch (error) {
      this.#refuse(guest, error);
      return;
    }
    this.#repeatPlace(guest);
    guest.line.say({ type: "welcome" });
  }

  /** @param {import("../../worker/protocol.js").HelloMessage} hello @returns {Guest} */
  #admit({ id, tab }) {
    /** @type {Guest} */
    const guest = {
      id,
      tab,
      left: new AbortController(),
      line: new Line(
        lineName(this.id, id),
        "tab_to_host",
        "host_to_tab",
        (message) => this.#receive(guest, message),
        (error) => this.#refuse(guest, error),
      ),
    };
    this.#guests.set(id, guest);
    const { signal } = guest.left;
    navigator.locks
      .request(tabLock(id), { signal }, () => void this.leave(id))
      .catch((error) => signal.aborted || this.#refuse(guest, error)); // aborted: it has left before
    for (const message of this.#told.values()) guest.line.say(message);
    if (this.#engine) guest.line.say({ type: "ready", info: this.#engine.info });
    return guest;
  }

  /** @param {Guest} guest @param {Channels["tab_to_host"]} message */
  #receive(guest, message) {
    switch (message.type) {
      case "chat":
        // Any request before has been given up.
        this.#drop(guest);
        this.#queue.push({ tab: guest.tab, guest, request: message, place: null });
        this.#serve();
        break;
      case "cancel": {
        const { request, guest: owner } = this.#running?.entry ?? {};
        if (owner === guest && request?.id === message.id) return this.#running?.cancel();
        for (const { request } of this.#queue.remove((one) => one.guest === guest && one.request.id === message.id)) {
          const { code, message: text } = new Cancelled("cancelled", "chat: cancelled while it waited");
          guest.line.say({ type: "error", id: request.id, code: /** @type {any} */ (code), message: text, detail: {} });
        }
        this.#tellPlaces();
        break;
      }
      case "leave":
        void this.leave(guest.id);
    }
  }

  /** One that uses the model no more, of whichever tab. Resolves at once, or if it was the last when all has ended.
   * @param {string} id @returns {Promise<void>} */
  async leave(id) {
    const guest = this.#guests.get(id);
    if (guest) {
      this.#guests.delete(id);
      guest.left.abort();
      guest.line.close();
      this.#drop(guest);
      this.#tellPlaces();
    }
    if (this.#guests.size === 0 && !this.#isWanted()) await this.end();
  }

  /** Ends what a guest has asked for. @param {Guest} guest */
  #drop(guest) {
    this.#queue.remove((entry) => entry.guest === guest);
    if (this.#running?.entry.guest === guest) this.#running.cancel();
  }

  /** Runs what is next, if anything is and nothing runs. */
  #serve() {
    while (this.#engine && !this.#running && !this.#isOver) {
      const entry = this.#queue.shift();
      if (!entry) break;
      this.#run(this.#engine, entry);
    }
    if (!this.#isOver) this.#tellPlaces();
  }

  /** @param {Engine} engine @param {Entry} entry */
  #run(engine, entry) {
    const { guest, request } = entry;
    const { id } = request;
    this.#tellPlace(entry, 0);
    try {
      const cancel = engine.relay(request, (message) => {
        if (this.#isOver) return;
        const isEnd = message.type === "done" || message.type === "error";
        if (isEnd) this.#running = null;
        if (engine.failure) return this.#fail(engine.failure);
        if (this.#guests.has(guest.id)) guest.line.say({ ...message, id });
        if (isEnd) this.#serve();
      });
      this.#running = { entry, cancel };
    } catch (error) {
      this.#fail(error);
    }
  }

  #tellPlaces() {
    const before = this.#running ? 1 : 0;
    this.#queue.order().forEach((entry, index) => this.#tellPlace(entry, before + index));
  }

  /** @param {Entry} entry @param {number} place */
  #tellPlace(entry, place) {
    if (entry.place === place) return;
    entry.place = place;
    entry.guest.line.say({ type: "queued", id: entry.request.id, place });
  }

  /** Of a guest's request that is known here, again: one that is not told of with a `welcome` has been forgotten.
   * @param {Guest} guest */
  #repeatPlace(guest) {
    const known = [...(this.#running ? [this.#running.entry] : []), ...this.#queue.order()];
    for (const { request, place, guest: owner } of known) {
      if (owner === guest && place !== null) guest.line.say({ type: "queued", id: request.id, place });
    }
  }

  /** @param {string} key @param {Channels["host_to_tab"]} message */
  #tell(key, message) {
    this.#told.set(key, message);
    this.#sayToAll(message);
  }

  /** @param {Channels["host_to_tab"]} message */
  #sayToAll(message) {
    for (const { line } of this.#guests.values()) line.say(message);
  }

  /** One guest's fault. @param {Guest} guest @param {any} error */
  #refuse(guest, error) {
    guest.line.say(errorMessage(error));
    void this.leave(guest.id);
  }

  /** Everybody's end. @param {any} error */
  #fail(error) {
    if (this.#isOver) return;
    const { code, message, detail } = errorMessage(error);
    this.failure = errorFrom(code, message, detail);
    this.#sayToAll(errorMessage(error));
    void this.end();
  }

  /** Serves nobody any more, and frees the engine. @returns {Promise<void>} */
  async end() {
    if (this.#isOver) return this.ended;
    this.#isOver = true;
    this.#loading.abort();
    this.#lobby.close();
    for (const { line, left } of this.#guests.values()) {
      left.abort();
      line.close();
    }
    this.#guests.clear();
    await this.#engine?.dispose();
    (await this.#held)();
    this.#settle();
    return this.ended;
  }
}

/** @param {any} error @returns {import("../../worker/protocol.js").ErrorMessage} */
function errorMessage(error) {
  const known = typeof error?.code === "string" ? error : new ProtocolError("protocol.internal", String(error));
  return { type: "error", id: null, code: known.code, message: known.message, detail: known.detail };
}
