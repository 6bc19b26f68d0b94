// The stage `boundary`: what only a page can be asked. Text to bytes and back, replies as they stream, a reply that
// is stopped, a model that is loaded again, messages that are wrong. What is to come out stands in
// parity-boundary.json; this file only does what a case's kind says.

import { SLM2 } from "./client.js";
import { FaultyPage } from "./parity-faults.js";
import { hex, unhex } from "./parity-records.js";
import { Decoder, encode } from "./text.js";
import { Slm2Error } from "../worker/protocol.js";

/** @typedef {import("./client.js").LoadOptions} LoadOptions */
/** @typedef {Awaited<ReturnType<typeof SLM2.load>>} Slm */
/** @typedef {{kind: string, input: any, output: any}} Case */
/** @typedef {{id: string, input: any, output: any}} Record */
/** What the cases work with. `slm` is another one when a case has loaded it again.
 * @typedef {{slm: Slm, loadOptions: LoadOptions, site: string, root: URL, page: FaultyPage | null,
 *   isPageReady: boolean, cachedBytes: number}} Context */

const MAX_TRIES = 5;

/** @param {number} index */
const boundaryId = (index) => `boundary-${String(index).padStart(5, "0")}`;

/** One case's record. Rejects only with what is no answer: a worker that died, a file that could not be had.
 * @param {Context} context @param {Case} each @param {number} index @returns {Promise<Record>} */
export async function runCase(context, { kind, input }, index) {
  const record = { id: boundaryId(index), input: { kind, ...input } };
  return { ...record, output: await RUN[kind](context, input) };
}

/** What the data file says of a case. @param {Case} each @param {number} index @returns {Record} */
export const expectedOf = ({ kind, input, output }, index) => ({ id: boundaryId(index), input: { kind, ...input }, output });

/** @type {{[kind: string]: (context: Context, input: any) => Promise<any>}} */
const RUN = {
  async encode(_, { units }) {
    try {
      return { hex: hex(encode(textOf(units))) };
    } catch (error) {
      return { error: codeOf(error), index: /** @type {any} */ (error).detail.index };
    }
  },

  async decode(_, { pieces }) {
    const decoder = new Decoder();
    try {
      const texts = pieces.map((/** @type {string} */ piece) => decoder.push(unhex(piece)));
      return { texts: [...texts, decoder.end()] };
    } catch (error) {
      return { error: codeOf(error) };
    }
  },

  async refuse({ slm }, { field, units }) {
    const text = textOf(units);
    const content = field === "content" ? text : "Hi";
    try {
      await slm.chat([{ role: "user", content }], { max_tokens: 1, ...withText(field, text) }).result;
      return { error: null };
    } catch (error) {
      return { error: codeOf(error) };
    }
  },

  async chat({ slm }, { content, options }) {
    const chat = slm.chat([{ role: "user", content }], options);
    const deltas = [];
    for await (const delta of chat) deltas.push(delta);
    const { text, reason, generated_ids: ids } = await chat.result;
    const whole = deltas.every((delta) => delta.isWellFormed());
    return { text, reason, ids, whole: Number(whole && deltas.join("") === text) };
  },

  async abort({ slm }, { content, after, options }) {
    const messages = [{ role: "user", content }];
    let stopped = await stoppedAfter(slm, messages, options, after);
    // A machine may be so busy that a short reply has ended before the page heard of its beginning.
    for (let i = 1; i < MAX_TRIES && stopped.reason !== "cancelled"; i++) {
      stopped = await stoppedAfter(slm, messages, options, after);
    }
    const { generated_ids: ids } = await slm.chat(messages, options).result;
    const begins = stopped.generated_ids.every((id, i) => id === ids[i]);
    return { stopped: stopped.reason, begins: Number(begins), ids };
  },

  async busy({ slm }, { content, options }) {
    const messages = [{ role: "user", content }];
    const chat = slm.chat(messages, options);
    let error = null;
    try {
      slm.chat(messages, options);
    } catch (thrown) {
      error = codeOf(thrown);
    }
    return { error, ids: (await chat.result).generated_ids };
  },

  async reload(context, { content, options }) {
    const messages = [{ role: "user", content }];
    await context.slm.dispose();
    let afterDispose = null;
    try {
      context.slm.chat(messages, options);
    } catch (error) {
      afterDispose = codeOf(error);
    }
    context.slm = await SLM2.load({
      ...context.loadOptions,
      onProgress: ({ stage, cached }) => {
        if (stage === "weights") context.cachedBytes = cached;
      },
    });
    const { generated_ids: ids } = await context.slm.chat(messages, options).result;
    return { after_dispose: afterDispose, ids };
  },

  async fault(context, { state, send }) {
    const { root, site, loadOptions } = context;
    const { model = "", executor = "auto" } = loadOptions;
    context.page ??= new FaultyPage({ root, site, model, executor });
    if (state === "ready" && !context.isPageReady) {
      await context.page.load();
      context.isPageReady = true;
    }
    return context.page.send(send);
  },
};

/** A reply that is stopped after so many tokens.
 * @param {Slm} slm @param {import("./client.js").Message[]} messages @param {object} options @param {number} after */
async function stoppedAfter(slm, messages, options, after) {
  const abort = new AbortController();
  const chat = slm.chat(messages, { ...options, signal: abort.signal });
  for await (const _ of chat) if (chat.nTokens >= after) abort.abort();
  return chat.result;
}

/** @param {number[]} units @returns {string} */
const textOf = (units) => String.fromCharCode(...units);

/** Options of a chat with a text somewhere. @param {string} field @param {string} text
 * @returns {import("./client.js").ChatOptions} */
function withText(field, text) {
  switch (field) {
    case "content":
      return {};
    case "stop":
      return { stop: text };
    case "tool":
      return { tools: [{ type: "function", function: { name: text } }] };
    case "pattern":
      return { response_format: { type: "regex", pattern: text } };
    case "local_state":
      return { local_state: text };
    case "evidence":
      return { evidence: [{ id: "a", relevance: 1, content: text }] };
    default:
      throw new Error(`no such field: ${field}`);
  }
}

/** The code of an error of ours; any other is no answer. @param {unknown} error */
function codeOf(error) {
  if (error instanceof Slm2Error && !error.code.startsWith("device.") && !error.code.startsWith("asset.")) {
    return error.code;
  }
  throw error;
}
