// The boundary: the only place where text becomes bytes and bytes become text.
//
// JavaScript strings may hold lone surrogates, which have no UTF-8. TextEncoder would turn each into
// U+FFFD without a word; here they are an error that says where. The way back is as strict: a decoder
// that refuses what is not UTF-8 and keeps a leading U+FEFF, which is a character like any other.

import { InputError, LIMITS, ProtocolError } from "../worker/protocol.js";

/** The UTF-8 bytes of `text`.
 *
 * Throws InputError `input.text` at a lone surrogate (detail: place, index in UTF-16 units, code_unit),
 * `input.budget` above LIMITS.content_bytes.
 * @param {string} text @param {string} [place] what the text is, for the message
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function encode(text, place = "text") {
  checkText(text, place);
  const bytes = new TextEncoder().encode(text);
  if (bytes.byteLength > LIMITS.content_bytes) {
    throw new InputError(
      "input.budget",
      `${place}: found ${bytes.byteLength} bytes; allowed: at most ${LIMITS.content_bytes}`,
      { place, found: bytes.byteLength, allowed: LIMITS.content_bytes },
    );
  }
  return bytes;
}

/** @param {string} text @param {string} place */
function checkText(text, place) {
  const index = loneSurrogate(text);
  if (index < 0) return;
  const unit = `U+${text.charCodeAt(index).toString(16).toUpperCase()}`;
  throw new InputError(
    "input.text",
    `${place}: found the lone surrogate ${unit} at index ${index}; allowed: well-formed Unicode`,
    { place, index, code_unit: unit },
  );
}

/** The UTF-8 bytes of a JSON value: a string is JSON text already and stays as it is, with its numbers as they
 * are spelled; anything else is written by JSON.stringify, so 1.0 becomes 1.
 *
 * Throws InputError `input.json` for what JSON cannot say (undefined, NaN, a Date, a cycle): nothing is left out
 * or replaced; `input.text` and `input.budget` as `encode`.
 * @param {unknown} value @param {string} place
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function encodeJson(value, place) {
  if (typeof value === "string") return encode(value, place);
  try {
    checkJson(value, place);
    return encode(JSON.stringify(value), place);
  } catch (error) {
    if (error instanceof InputError) throw error;
    // What a full stack throws differs between browsers; a getter may throw anything.
    throw notJson(place, "a value that is nested too deeply, holds itself, or cannot be read");
  }
}

/** @param {any} value @param {string} place */
function checkJson(value, place) {
  if (value === null || typeof value === "boolean" || Number.isFinite(value)) return;
  if (typeof value === "string") checkText(value, place);
  else if (Array.isArray(value)) for (let i = 0; i < value.length; i++) checkJson(value[i], `${place}[${i}]`);
  else if (typeof value === "object" && [Object.prototype, null].includes(Object.getPrototypeOf(value))) {
    for (const [key, part] of Object.entries(value)) {
      checkText(key, `a key of ${place}`);
      checkJson(part, `${place}.${key}`);
    }
  } else throw notJson(place, typeof value === "object" ? "an object with a class" : String(value));
}

/** @param {string} place @param {string} found */
function notJson(place, found) {
  const [where, what] = [place.slice(0, 200), found.slice(0, 80)];
  return new InputError("input.json", `${where}: found ${what}; allowed: a JSON value`, {
    place: where,
    found: what,
    allowed: "a JSON value",
  });
}

/** The index of the first surrogate without its partner, or -1. @param {string} text */
function loneSurrogate(text) {
  if (text.isWellFormed()) return -1;
  for (let i = 0; i < text.length; i++) {
    const code = text.codePointAt(i) ?? 0;
    if (code > 0xffff) i++;
    else if (code >= 0xd800 && code <= 0xdfff) return i;
  }
  return -1;
}

/** Bytes to text, piece by piece. A character may be split between two pieces; the text holds whole ones. */
export class Decoder {
  #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  /** The text of `bytes`, as far as its characters are complete.
   *
   * Throws ProtocolError `protocol.message` on bytes that are not UTF-8.
   * @param {Uint8Array} bytes @returns {string} */
  push(bytes) {
    return this.#decode(unshared(bytes), true);
  }

  /** What was held back: nothing, if the pieces ended with a whole character; else throws.
   * @returns {string} */
  end() {
    return this.#decode(undefined, false);
  }

  /** @param {Uint8Array<ArrayBuffer> | undefined} bytes @param {boolean} stream */
  #decode(bytes, stream) {
    try {
      return this.#decoder.decode(bytes, { stream });
    } catch {
      const found = bytes ? "bytes that are not UTF-8" : "half a character at the end";
      throw new ProtocolError("protocol.message", `delta.data: found ${found}; allowed: UTF-8`, {
        field: "delta.data",
        found,
        allowed: "UTF-8",
      });
    }
  }
}

/** The text of `bytes`, which are whole. @param {Uint8Array} bytes @returns {string} */
export function decode(bytes) {
  const decoder = new Decoder();
  return decoder.push(bytes) + decoder.end();
}

/** `bytes`, copied out of shared memory: TextDecoder and SubtleCrypto take no view of it.
 * @param {Uint8Array} bytes @returns {Uint8Array<ArrayBuffer>} */
export function unshared(bytes) {
  const shared = typeof SharedArrayBuffer === "function" && bytes.buffer instanceof SharedArrayBuffer;
  return shared ? bytes.slice() : /** @type {Uint8Array<ArrayBuffer>} */ (bytes);
}
