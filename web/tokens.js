// Tokens as people can see them: their text with what is invisible made visible, and bytes where a token holds
// only part of a character.

import { make } from "./dom.js";
import { decode } from "./text.js";

/** A stretch of a token: `text` as it is, a `mark` for a character that cannot be seen, or `raw` bytes of a
 * character that other tokens share. @typedef {{kind: "text" | "mark" | "raw", text: string}} Stretch */
/** `note`: what a partial token is part of, or "". `key`: equal for tokens that look the same.
 * @typedef {{id: number, bytes: Uint8Array, stretches: Stretch[], note: string, breaks: boolean, key: string}} Shown */

/** @type {Record<string, string>} */
const MARKS = { " ": "·", "\n": "⏎", "\t": "→" };
// Controls, formats, separators, private and unassigned characters, and fillers: nothing, or nothing to rely on.
const INVISIBLE = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]/u;
const COMBINING = /^\p{M}/u;
const N_HUES = 4;

/** The tokens whose bytes are data[0, ends[0]), data[ends[0], ends[1]), …
 *
 * `data` begins with a whole character and is UTF-8, but may end within a character.
 * @param {Uint32Array} ids @param {Uint32Array} ends @param {Uint8Array<ArrayBuffer>} data @returns {Shown[]} */
export function describe(ids, ends, data) {
  return Array.from(ends, (end, i) => {
    const start = i === 0 ? 0 : ends[i - 1];
    /** @type {Stretch[]} */
    const stretches = [];
    const notes = [];
    let wholeFrom = start;
    for (let at = start; at < end; ) {
      const first = characterStart(data, at);
      const last = first + characterBytes(data[first]);
      if (first >= start && last <= end) {
        at = last;
        continue;
      }
      stretches.push(...visible(decode(data.subarray(wholeFrom, at))));
      const stop = Math.min(last, end);
      stretches.push({ kind: "raw", text: hex(data.subarray(at, stop)) });
      notes.push(partOf(data, first, last, at, stop));
      at = wholeFrom = stop;
    }
    stretches.push(...visible(decode(data.subarray(wholeFrom, end))));
    const bytes = data.subarray(start, end);
    const note = notes.join("; ");
    return { id: ids[i], bytes, stretches, note, breaks: bytes.includes(0x0a), key: `${ids[i]} ${note}` };
  });
}

/** The elements of one token: its card, and a line break if its text has one.
 * @param {Shown} token @param {number} place @param {boolean} isControl @returns {HTMLElement[]} */
export function card({ id, bytes, stretches, note, breaks }, place, isControl) {
  const said = make("span", { class: "said" });
  for (const { kind, text } of stretches) {
    said.append(kind === "text" ? text : make("i", kind === "raw" ? { class: "raw" } : {}, text));
  }
  const kind = isControl ? "token control" : note ? "token part" : "token";
  const item = make(
    "li",
    { class: kind, "data-hue": String(place % N_HUES), ...(note && { title: note }) },
    said,
    make("span", { class: "id" }, String(id)),
    make("span", { class: "hex" }, hex(bytes)),
  );
  return breaks ? [item, make("li", { class: "break", "aria-hidden": "true" })] : [item];
}

/** Number of characters (code points) in well-formed UTF-8. @param {Uint8Array} bytes */
export function countCharacters(bytes) {
  let count = 0;
  for (const byte of bytes) if ((byte & 0xc0) !== 0x80) count++;
  return count;
}

/** @param {string} text @returns {Stretch[]} */
function visible(text) {
  /** @type {Stretch[]} */
  const stretches = [];
  for (const character of text) {
    const mark = markOf(character);
    const kind = mark ? "mark" : "text";
    const before = stretches.at(-1);
    if (before?.kind === kind) before.text += mark || character;
    else stretches.push({ kind, text: mark || onACircle(character) });
  }
  return stretches;
}

/** @param {string} character */
function markOf(character) {
  return MARKS[character] ?? (INVISIBLE.test(character) ? number(character) : "");
}

/** A combining mark needs something to sit on. @param {string} character */
const onACircle = (character) => (COMBINING.test(character) ? `◌${character}` : character);

/** @param {string} character */
const number = (character) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** @param {Uint8Array<ArrayBuffer>} data @param {number} first @param {number} last @param {number} at
 * @param {number} stop */
function partOf(data, first, last, at, stop) {
  const which = stop - at === 1 ? `byte ${at - first + 1}` : `bytes ${at - first + 1} to ${stop - first}`;
  if (last > data.length) return `${which} of a character of ${last - first} bytes`;
  const character = decode(data.subarray(first, last));
  return `${which} of the ${last - first} bytes of ${character} ${number(character)}`;
}

/** Where the character that the byte at `at` belongs to begins. @param {Uint8Array} data @param {number} at */
function characterStart(data, at) {
  while (at > 0 && (data[at] & 0xc0) === 0x80) at--;
  return at;
}

/** Bytes of the character that `lead` opens. @param {number} lead */
const characterBytes = (lead) => (lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4);

/** @param {Uint8Array} bytes */
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
