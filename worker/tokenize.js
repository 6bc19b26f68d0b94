// The tokenizer view's worker: text to tokens by the C kernel, without Python.
//
// It fetches the manifest, the tokenizer's file and the kernel, and nothing else of the model; what a chat has
// stored already isn't fetched again. The manifest's hash answers for the file, which the compiler has checked.

import { fileEntry, ModelFiles } from "./files.js";
import { check, errorFrom, FormatError, LIMITS, ProtocolError, Slm2Error } from "./protocol.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";
import { Vocabulary } from "./vocabulary.js";
import { moduleOf } from "./wasm/modules.js";
import { KernelError, TokenizerKernel } from "./wasm/tokenizer.js";

/** @typedef {import("./protocol.js").Channels} Channels */

// The tokens whose bytes the page gets: more than anybody looks at, few enough to be drawn at once.
const MAX_SHOWN = 3000;

// What this script came with; `open` hears of a failure.
const HOME = new URL("../", import.meta.url);
const ownSite = fetchSite(HOME);
ownSite.catch(() => {});

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));
/** @type {{kernel: TokenizerKernel, vocabulary: Vocabulary} | null} */
let tokenizer = null;

/** @param {Channels["tokenizer_to_page"]} message @param {ArrayBuffer[]} [transfer] */
const tellPage = (message, transfer = []) => worker.postMessage(message, transfer);

worker.addEventListener("message", async ({ data }) => {
  try {
    checkProtocol(data, "tokenizer");
    const message = check("page_to_tokenizer", data);
    if (message.type === "open") tellPage({ type: "opened", info: await open(message) });
    else encode(message);
  } catch (error) {
    const { code, message, detail } =
      error instanceof Slm2Error ? error : errorFrom("protocol.internal", `tokenizer: ${error}`);
    const id = data?.type === "encode" ? data.id : null;
    tellPage({ type: "error", id, code: /** @type {any} */ (code), message, detail });
  }
});

/** What the page shows of the tokenizer. @param {import("./protocol.js").OpenMessage} request
 * @returns {Promise<Record<string, any>>} */
async function open(request) {
  const files = await ModelFiles.open(request, {
    onBytes: () => {},
    onWarning: ({ code, message, detail }) =>
      tellPage({ type: "warning", code: /** @type {any} */ (code), message, detail }),
  });
  const fetched = ownSite.then((site) => moduleOf(HOME, site, "tokenizer", false));
  fetched.catch(() => {}); // it is awaited below, after what may fail first
  checkSite(request.site, (await ownSite).version, "tokenizer");
  const { json } = await files.manifest(ownSite);
  const entry = fileEntry(json.tokenizer, "tokenizer", LIMITS.tokenizer_bytes);
  await files.begin();
  const file = await files.obtain(entry, new Uint8Array(entry.bytes));
  const module = await fetched;

  const start = performance.now();
  const vocabulary = new Vocabulary(file);
  const kernel = await TokenizerKernel.load(module, file);
  kernel.encode(Uint8Array.of(0x61), Uint32Array.of(0, 1, 0));
  const open_ms = performance.now() - start;

  tokenizer = { kernel, vocabulary };
  const { nTokens, markers } = vocabulary;
  return { title: String(json.title ?? request.model), n_tokens: nTokens, markers, open_ms };
}

/** @param {import("./protocol.js").EncodeMessage} request */
function encode({ id, data, trusted }) {
  if (!tokenizer) throw new ProtocolError("protocol.state", "encode: no tokenizer is open", { state: "closed" });
  const { kernel, vocabulary } = tokenizer;
  const start = performance.now();
  const ids = encodeBytes(kernel, data, trusted);
  const encode_ms = performance.now() - start;

  const n_bytes = ids.reduce((sum, token) => sum + vocabulary.length(token), 0);
  const shown = Array.from(ids.subarray(0, MAX_SHOWN), (token) => vocabulary.bytes(token));
  const bytes = new Uint8Array(shown.reduce((sum, each) => sum + each.length, 0));
  const ends = new Uint32Array(shown.length);
  let end = 0;
  shown.forEach((each, i) => {
    bytes.set(each, end);
    ends[i] = end += each.length;
  });
  tellPage({ type: "tokens", id, ids, ends, data: bytes, n_bytes, encode_ms }, [
    ids.buffer,
    ends.buffer,
    bytes.buffer,
  ]);
}

/** The ids, or an error in words. @param {TokenizerKernel} kernel @param {Uint8Array} data
 * @param {boolean} trusted */
function encodeBytes(kernel, data, trusted) {
  try {
    return kernel.encode(data, Uint32Array.of(0, data.length, Number(trusted)));
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    const { name, offset } = error;
    const byte = `0x${data[offset]?.toString(16).toUpperCase().padStart(2, "0")}`;
    if (name === "input.character") {
      const detail = { offset_bytes: offset, byte: data[offset] };
      throw errorFrom(name, `text: byte ${byte} at byte ${offset} has no token in this vocabulary`, detail);
    }
    if (name === "format.tokenizer_file") {
      throw new FormatError(name, "tokenizer.slm2tok: the kernel found tables that contradict each other");
    }
    throw errorFrom("protocol.internal", `text: ${error.message}`);
  }
}
