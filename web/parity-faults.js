// Protocol faults: messages that no page of ours sends, said to a real engine. It must answer each with a typed
// error and go on. This speaks to the workers by itself, since the client would send none of it.

import {
  check,
  CONTROL_BYTES,
  DeviceError,
  errorFrom,
  PROTOCOL_VERSION,
} from "../worker/protocol.js";
import { scriptUrl } from "./trusted.js";

/** @typedef {import("./client.js").Executor} Executor */
/** @typedef {import("../worker/protocol.js").Channels} Channels */
/** @typedef {{root: URL, site: string, model: string, executor: Executor}} Place */

const CHAT = {
  messages: [{ role: "user", content: new TextEncoder().encode("Hi"), reasoning_content: null, tool_calls: null }],
  tools: null,
  enable_thinking: null,
  preserve_thinking: false,
  local_state: null,
  evidence: null,
  budget_tokens: null,
  continue_ids: null,
  params: { temperature: 0, max_tokens: 2, invalid_utf8: "show" },
};

// A model that loads on a software GPU takes tens of seconds.
const ANSWER_MS = 300_000;

/** An engine that hears what it is not meant to. */
export class FaultyPage {
  /** @type {Worker[]} */
  #workers = [];
  #engine;
  #place;
  #lastId = 0;
  /** @type {(message: any) => void} */
  #answer = () => {};
  /** @type {(error: unknown) => void} */
  #fail = () => {};

  /** @param {Place} place */
  constructor(place) {
    this.#place = place;
    this.#engine = this.#start("worker/worker.js");
    this.#engine.onmessage = ({ data }) => this.#hear(data);
  }

  /** @param {string} script */
  #start(script) {
    const name = `slm2 parity ${Math.random().toString(36).slice(2)}`;
    const worker = new Worker(scriptUrl(new URL(script, this.#place.root)), { type: "module", name });
    worker.onerror = (event) => {
      event.preventDefault();
      this.#fail(new DeviceError("device.worker", event.message || "a worker could not be started"));
    };
    this.#workers.push(worker);
    return worker;
  }

  /** @param {any} data */
  #hear(data) {
    try {
      const message = check("worker_to_page", data);
      if (message.type === "thread") this.#startThread(message.port);
      else if (["error", "done", "ready"].includes(message.type)) this.#answer(message);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** @param {MessagePort} port */
  #startThread(port) {
    const worker = this.#start("worker/wasm/thread.js");
    worker.onmessage = () => worker.postMessage(port, [port]);
  }

  /** What the engine says next to `message` that ends something. @param {any} message @param {Transferable[]} [transfer]
   * @returns {Promise<any>} */
  #ask(message, transfer = []) {
    // A worker that the browser has not started says nothing, and there is no error.
    const late = new DeviceError("device.worker", `no answer to ${message?.type ?? typeof message}`);
    let timer = 0;
    return new Promise((resolve, reject) => {
      timer = setTimeout(reject, ANSWER_MS, late);
      [this.#answer, this.#fail] = [resolve, reject];
      this.#engine.postMessage(message, transfer);
    }).finally(() => clearTimeout(timer));
  }

  /** Loads the model as a page does. Rejects with what went wrong. */
  async load() {
    const { port1, port2 } = new MessageChannel();
    const { root, site, model } = this.#place;
    const shared = typeof SharedArrayBuffer === "function";
    const loader = this.#start("worker/loader.js");
    loader.onmessage = ({ data }) => {
      if (data.type === "error") this.#fail(errorFrom(data.code, data.message, data.detail));
    };
    const ready = this.#ask(this.#init(port1), [port1]);
    /** @type {Channels["page_to_loader"]} */
    const request = { type: "load", version: PROTOCOL_VERSION, site, root: root.href, model, shared, port: port2 };
    loader.postMessage(request, [port2]);
    const message = await ready;
    loader.terminate();
    if (message.type === "error") throw errorFrom(message.code, message.message, message.detail);
  }

  /** @param {MessagePort} port @returns {Channels["page_to_worker"]} */
  #init(port) {
    const { root, site, executor } = this.#place;
    const control = typeof SharedArrayBuffer === "function" ? new SharedArrayBuffer(CONTROL_BYTES) : null;
    return {
      type: "init",
      version: PROTOCOL_VERSION,
      site,
      root: root.href,
      executor,
      max_seq_len: 256,
      control,
      port,
    };
  }

  /** What becomes of a fault: the code of the engine's error, or the reason of its reply.
   * @param {string} what see `faults` @returns {Promise<{error: string} | {reason: string}>} */
  async send(what) {
    const { message, transfer } = this.#fault(what);
    const answer = await this.#ask(message, transfer);
    return answer.type === "error" ? { error: answer.code } : { reason: answer.reason };
  }

  /** @param {string} what @returns {{message: any, transfer?: Transferable[]}} */
  #fault(what) {
    const chat = (/** @type {object} */ changes) => ({ message: { type: "chat", id: ++this.#lastId, ...CHAT, ...changes } });
    const turn = CHAT.messages[0];
    switch (what) {
      case "text":
        return { message: "hello" };
      case "unknown type":
        return { message: { type: "hello" } };
      case "no fields":
        return { message: { type: "chat" } };
      case "old version":
        return { message: { type: "init", version: 0 } };
      case "no messages":
        return chat({ messages: [] });
      case "text for bytes":
        return chat({ messages: [{ ...turn, content: "Hi" }] });
      case "extra field":
        return chat({ more: 1 });
      case "id 0":
        return chat({ id: 0 });
      case "broken text":
        return chat({ messages: [{ ...turn, content: new Uint8Array([0xed, 0xa0, 0x80]) }] });
      case "bad temperature":
        return chat({ params: { temperature: -1 } });
      case "init again": {
        const { port1 } = new MessageChannel();
        return { message: this.#init(port1), transfer: [port1] };
      }
      case "cancel -1":
        return { message: { type: "cancel", id: -1 } };
      case "chat, same id":
        return chat({ id: this.#lastId });
      case "chat":
        return chat({});
      default:
        throw new Error(`no such fault: ${what}`);
    }
  }

  /** Ends the workers. */
  end() {
    for (const worker of this.#workers) worker.terminate();
  }
}
