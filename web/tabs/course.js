// Course: a reply's way through one host, or several.
//
// Theory of operation. A reply whose host is gone is made again from its beginning by the next one. It comes out the same,
// byte for byte, so all that changes is the time: what has been told already is compared and not told again, and the
// result, transcript and all, is that of a reply that was never interrupted. A reply that is stopped while it is made
// again has no such result: what was told is more than what this run has said. It rejects with Cancelled, as one does that
// is stopped while it waits.

import { Chat } from "../client.js";
import { ProtocolError } from "../../worker/protocol.js";

/** @typedef {import("../../worker/protocol.js").Channels} Channels */
/** @typedef {import("../../worker/protocol.js").ChatMessage} ChatMessage */

export class Course {
  /** What the page has of it. @type {Chat} */
  chat;
  /** The id that it was sent with last. */
  id = 0;
  /** Whether it was stopped, and a host was told so. */
  isCancelled = false;
  /** How many hosts have run it, or were to run it first. */
  tries = 0;
  #request;
  #options;
  #runs = 0;
  /** Where it was told that it stands. @type {number | null} */
  #place = null;
  #told = { text: new Told(), reasoning: new Told() };
  #hasLedger = false;

  /** @param {ChatMessage} request @param {import("../client.js").ChatOptions} options @param {() => void} cancel */
  constructor(request, options, cancel) {
    this.#request = request;
    this.#options = options;
    this.chat = new Chat(request.id, options, cancel);
  }

  /** What to ask a host for. @param {number} id that no request before had @returns {ChatMessage} */
  send(id) {
    this.id = id;
    this.#runs += 1;
    this.#place = null;
    for (const told of Object.values(this.#told)) told.begin();
    return { ...this.#request, id };
  }

  /** @param {Extract<Channels["host_to_tab"], {id: number | null}>} message of this request */
  hear(message) {
    const { chat } = this;
    switch (message.type) {
      case "queued":
        return this.#tellPlace(message.place);
      case "context":
        if (this.#hasLedger) return; // of a run before: it is the same
        this.#hasLedger = true;
        break;
      case "delta": {
        const data = this.#told[message.part].next(message.data);
        if (data === null) return this.#differs();
        return chat.receive({ ...message, data, n_tokens: Math.max(chat.nTokens, message.n_tokens) });
      }
      case "done": {
        const isWhole = Object.values(this.#told).every((told) => told.isWhole);
        if (!isWhole && message.reason === "cancelled") return this.stop();
        if (!isWhole) this.#differs();
        return chat.receive({ ...message, stats: { ...message.stats, runs: this.#runs } });
      }
    }
    chat.receive(message);
  }

  /** It ends, as nobody will run it any more. */
  stop() {
    const message = "chat: cancelled while it waited";
    this.chat.receive({ type: "error", id: this.id, code: "cancelled", message, detail: {} });
  }

  #differs() {
    this.chat.break(new ProtocolError("protocol.internal", "chat: made again, the reply is another one"));
  }

  /** @param {number} place */
  #tellPlace(place) {
    if (place === this.#place) return;
    this.#place = place;
    if (place === 0) this.tries += 1;
    try {
      this.#options.onQueue?.(place);
    } catch (error) {
      this.chat.break(error);
    }
  }
}

/** The bytes of a part that have been told. */
class Told {
  #bytes = new Uint8Array(1024);
  #length = 0;
  /** How many of them this run has said. */
  #come = 0;

  begin() {
    this.#come = 0;
  }

  /** Whether this run has said all that was told. */
  get isWhole() {
    return this.#come === this.#length;
  }

  /** What is new of these bytes, or null if they are not those that were told. @param {Uint8Array<ArrayBuffer>} data */
  next(data) {
    const nKnown = Math.min(data.byteLength, this.#length - this.#come);
    const known = this.#bytes.subarray(this.#come, this.#come + nKnown);
    if (!known.every((byte, i) => byte === data[i])) return null;
    this.#come += data.byteLength;
    const fresh = data.subarray(nKnown);
    if (this.#come > this.#bytes.length) {
      const grown = new Uint8Array(2 * this.#come);
      grown.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = grown;
    }
    this.#bytes.set(fresh, this.#length);
    this.#length += fresh.byteLength;
    return fresh;
  }
}
