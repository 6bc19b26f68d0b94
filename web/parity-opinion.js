// The stage `regex`: the texts of the stage `tokenizer`, and beside our pieces those of another library where they
// are others. A text with a character that one side may not know yet is not put to it.

import { DeviceError, check, errorFrom, PROTOCOL_VERSION } from "../worker/protocol.js";
import { encode } from "./text.js";
import { scriptUrl } from "./trusted.js";

/** @typedef {import("./client.js").ParitySize} Size */
/** @typedef {import("../worker/protocol.js").Channels} Channels */

/** A library that splits, in a worker of its own. */
export class Opinion {
  #worker;
  #lastId = 0;
  /** @type {(message: any) => void} */
  #answer = () => {};
  /** @type {(error: unknown) => void} */
  #fail = () => {};

  /** @param {URL} root */
  constructor(root) {
    const worker = new Worker(scriptUrl(new URL("worker/opinion.js", root)), { type: "module", name: "slm2 opinion" });
    worker.onmessage = ({ data }) => {
      try {
        const message = check("opinion_to_page", data);
        if (message.type === "error") this.#fail(errorFrom(message.code, message.message, message.detail));
        else this.#answer(message);
      } catch (error) {
        this.#fail(error);
      }
    };
    worker.onerror = (event) => {
      event.preventDefault();
      this.#fail(new DeviceError("device.worker", `opinion: ${event.message || "the worker did not start"}`));
    };
    this.#worker = worker;
  }

  /** @param {Channels["page_to_opinion"]} message @returns {Promise<any>} */
  #ask(message) {
    return new Promise((resolve, reject) => {
      [this.#answer, this.#fail] = [resolve, reject];
      this.#worker.postMessage(message);
    });
  }

  /** Loads Python and the library. @param {URL} root @param {string} site its version */
  async load(root, site) {
    await this.#ask({ type: "opine", version: PROTOCOL_VERSION, site, root: root.href });
  }

  /** Its pieces of a text, or null where it may not know a character as we do.
   * @param {string} pattern @param {string} text @returns {Promise<string[] | null>} */
  async split(pattern, text) {
    const { answer } = await this.#ask({ type: "split", id: ++this.#lastId, pattern, data: encode(text) });
    return JSON.parse(answer);
  }

  /** Ends the worker. */
  end() {
    this.#worker.terminate();
  }
}

/** A text's record, as it is when both agree. @param {string[]} pieces @param {string} pattern @param {number} number */
export const agreed = (pieces, pattern, number) => ({
  id: `regex-${String(number).padStart(5, "0")}`,
  input: { pattern, text: pieces.join("") },
  output: { pieces },
});
