// What a tokenizer.slm2tok says about ids: their bytes, and which of them are added tokens.
// py/slm2_web/container.py and tokenizer2/tables.py describe the file; the kernel reads the rest of it.

import { FormatError } from "./protocol.js";

const MAGIC = "\x93SLM2TOK";
const VERSION = 2;
const ENTRIES_AT = 56;
const ENTRY_BYTES = 24;
const MAX_SECTIONS = 64;

export class Vocabulary {
  /** Number of ids. @type {number} */
  nTokens;
  /** The added tokens, ids ascending, with the bytes that name each.
   * @type {{id: number, data: Uint8Array<ArrayBuffer>}[]} */
  markers;
  #offsets;
  #blob;

  /** Reads in place: `file` must not change. Throws FormatError `format.tokenizer_file`.
   * @param {Uint8Array<ArrayBuffer>} file */
  constructor(file) {
    const sections = readSections(file);
    const words = (/** @type {string} */ tag) => {
      const bytes = find(sections, tag);
      if (bytes.byteOffset % 4 || bytes.byteLength % 4) throw damaged(tag, "a section of odd size or place", "u32[]");
      return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength / 4);
    };
    this.#offsets = words("OFFS");
    this.#blob = find(sections, "BLOB");
    this.nTokens = this.#offsets.length - 1;
    const added = words("ADDT");
    this.markers = [];
    for (let i = 0; i + 1 < added.length; i += 2) {
      this.markers.push({ id: added[i], data: this.bytes(added[i]).slice() });
    }
  }

  /** A token's bytes, where they lie. @param {number} id @returns {Uint8Array<ArrayBuffer>} */
  bytes(id) {
    const [start, end] = [this.#offsets[id], this.#offsets[id + 1]];
    if (!(start <= end && end <= this.#blob.length)) throw damaged("OFFS", `token ${id}`, "bytes of BLOB");
    return this.#blob.subarray(start, end);
  }

  /** Number of a token's bytes. @param {number} id */
  length(id) {
    return this.#offsets[id + 1] - this.#offsets[id];
  }
}

/** The sections by tag, each in the file. @param {Uint8Array<ArrayBuffer>} file */
function readSections(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const text = (/** @type {number} */ at, /** @type {number} */ n) => String.fromCharCode(...file.subarray(at, at + n));
  const isOurs = file.byteLength >= ENTRIES_AT && text(0, MAGIC.length) === MAGIC;
  if (!isOurs || view.getUint32(8, true) !== VERSION) {
    throw damaged("header", "another file or version", `version ${VERSION}`);
  }
  const count = view.getUint32(12, true);
  if (count > MAX_SECTIONS || ENTRIES_AT + count * ENTRY_BYTES > file.byteLength) {
    throw damaged("header", `${count} sections`, "their table in the file");
  }
  /** @type {Map<string, Uint8Array<ArrayBuffer>>} */
  const sections = new Map();
  for (let at = ENTRIES_AT; at < ENTRIES_AT + count * ENTRY_BYTES; at += ENTRY_BYTES) {
    const [start, size] = [view.getBigUint64(at + 8, true), view.getBigUint64(at + 16, true)];
    if (start + size > file.byteLength) throw damaged(text(at, 4), "a section beyond the end", "one in the file");
    sections.set(text(at, 4), file.subarray(Number(start), Number(start + size)));
  }
  return sections;
}

/** @param {Map<string, Uint8Array<ArrayBuffer>>} sections @param {string} tag */
function find(sections, tag) {
  const bytes = sections.get(tag);
  if (!bytes) throw damaged(tag, "no such section", "one");
  return bytes;
}

/** @param {string} place @param {string} found @param {string} allowed */
const damaged = (place, found, allowed) =>
  new FormatError("format.tokenizer_file", `${place}: found ${found}; allowed: ${allowed}`, {
    place,
    found,
    allowed,
  });
