// The tokenizer kernel (tokenizer.c) with one tokenizer.slm2tok in its memory. tokenizer2/native.py is its
// like in CPython.
//
// Memory, all aligned to 64 bytes:   file | text | spans | out | scratch
//
// `load` makes a memory of its own and copies the file in. `attach` uses a file where it lies, in a memory
// that others may read too (a shared one, with the module tokenizer.shared.wasm): each reader has an area of
// its own to work in. Nothing is built in either case; the first text can be encoded at once. The file must
// have passed tables.parse: the kernel stays in its bounds with any file, but only a checked one gives ids
// that mean something.

/** The kernel's exports. @typedef {{
 *   tok_scratch_bytes: (textBytes: number) => number,
 *   tok_out_cap: (textBytes: number) => number,
 *   tok_encode: (file: number, fileBytes: number, text: number, textBytes: number, spans: number,
 *     nSpans: number, out: number, outCap: number, scratch: number, scratchBytes: number) => number,
 * }} Exports */
/** Bytes [start, end) of a memory. @typedef {{start: number, end: number}} Area */

const ALIGNMENT = 64;
const PAGE_BYTES = 65536;
const MAX_MEMORY_BYTES = 65536 * PAGE_BYTES;
const SCRATCH_BYTES = 1 << 20;

const SCRATCH_TOO_SMALL = -2;
const NOT_UTF8 = -3;
const NO_TOKEN_FOR = -4;
const DAMAGED = -5;

/** Our error code for a status; any other is a bug of ours. @type {Record<number, string>} */
const CODES = {
  [NOT_UTF8]: "input.text",
  [NO_TOKEN_FOR]: "input.character",
  [DAMAGED]: "format.tokenizer_file",
};

/** The kernel gave no ids. `name` is one of our error codes; `offset` says where in the text, for NOT_UTF8
 * and NO_TOKEN_FOR. */
export class KernelError extends Error {
  /** @param {number} status @param {number} offset */
  constructor(status, offset) {
    super(`the tokenizer kernel gave status ${status} at byte ${offset}`);
    this.name = CODES[status] ?? "protocol.internal";
    this.status = status;
    this.offset = offset;
  }
}

/** The sizes of scratch to try, where `bound` is always enough. The first is for nearly every text; the
 * second, a third of the bound, for any whose size NFC leaves alone. @param {number} bound */
function* scratchSizes(bound) {
  if (SCRATCH_BYTES < bound) yield SCRATCH_BYTES;
  if (SCRATCH_BYTES < bound / 3) yield Math.ceil(bound / 3);
  yield bound;
}

export class TokenizerKernel {
  /** A kernel with a memory of its own, which holds a copy of `file`. `module`: tokenizer.wasm.
   * @param {WebAssembly.Module} module @param {Uint8Array} file @returns {Promise<TokenizerKernel>} */
  static async load(module, file) {
    const start = ALIGNMENT; // nothing of ours lies at address 0
    const end = start + file.byteLength;
    const memory = new WebAssembly.Memory({ initial: Math.ceil(end / PAGE_BYTES) });
    new Uint8Array(memory.buffer).set(file, start);
    return TokenizerKernel.attach(module, memory, { start, end }, { start: end, end: MAX_MEMORY_BYTES });
  }

  /** A kernel on a file that lies in `memory`, and that works in `work` and nowhere else; the memory grows up
   * to its end. `module`: tokenizer.wasm, or tokenizer.shared.wasm if the memory is shared (with a maximum of
   * at most 2 GiB).
   * @param {WebAssembly.Module} module @param {WebAssembly.Memory} memory
   * @param {Area} file @param {Area} work @returns {Promise<TokenizerKernel>} */
  static async attach(module, memory, file, work) {
    const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
    return new TokenizerKernel(/** @type {any} */ (exports), memory, file, work);
  }

  /** @param {Exports} exports @param {WebAssembly.Memory} memory @param {Area} file @param {Area} work */
  constructor(exports, memory, file, work) {
    this.exports = exports;
    this.memory = memory;
    this.file = file;
    this.work = work;
  }

  /** The ids of `text`. spans: triples (start, end, trusted) that tile it.
   *
   * Throws KernelError; RangeError if there is no room for the text.
   * @param {Uint8Array} text @param {Uint32Array} spans @returns {Uint32Array<ArrayBuffer>} */
  encode(text, spans) {
    const { exports, file } = this;
    const outCap = exports.tok_out_cap(text.byteLength) >>> 0;
    const bound = exports.tok_scratch_bytes(text.byteLength) >>> 0;
    let status = SCRATCH_TOO_SMALL;
    let out = 0;
    for (const scratchBytes of scratchSizes(bound)) {
      const places = this.place([text.byteLength, spans.byteLength, 4 * outCap, scratchBytes]);
      out = places[2];
      new Uint8Array(this.memory.buffer).set(text, places[0]);
      new Uint32Array(this.memory.buffer).set(spans, places[1] / 4);
      status = exports.tok_encode(
        file.start, file.end - file.start, places[0], text.byteLength, places[1], spans.length / 3,
        out, outCap, places[3], scratchBytes,
      ); // prettier-ignore
      if (status !== SCRATCH_TOO_SMALL) break;
    }
    if (status < 0) {
      const hasOffset = status === NOT_UTF8 || status === NO_TOKEN_FOR;
      throw new KernelError(status, hasOffset ? new Uint32Array(this.memory.buffer, out, 1)[0] : 0);
    }
    return new Uint32Array(this.memory.buffer, out, status).slice();
  }

  /** Where areas of these sizes lie, one after the other from the beginning of `work`; the memory reaches so
   * far.
   * @param {number[]} sizes @returns {number[]} */
  place(sizes) {
    let at = this.work.start;
    const places = sizes.map((size) => {
      const place = Math.ceil(at / ALIGNMENT) * ALIGNMENT;
      at = place + size;
      return place;
    });
    const needed = at - this.work.start;
    if (at > this.work.end) throw new RangeError(`${needed} bytes are needed to encode this text`);
    const missing = at - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / PAGE_BYTES));
    return places;
  }
}
