// Records of the parity suite on the page's side: one spelling, the digits that stand for them.
// The same as py/slm2_web/parity/canonical.py.

import { encode } from "./text.js";

const MARK_DIGITS = 8;

/** Canonical JSON: JSON.stringify of an object whose keys are sorted by code point, at every depth.
 * @param {any} value @returns {string} */
export function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  const keys = Object.keys(value).sort(byCodePoint);
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

/** Python's order of strings: UTF-16's is another one above U+D7FF. @param {string} a @param {string} b */
function byCodePoint(a, b) {
  const [left, right] = [[...a], [...b]];
  for (let i = 0; i < Math.min(left.length, right.length); i++) {
    const difference = (left[i].codePointAt(0) ?? 0) - (right[i].codePointAt(0) ?? 0);
    if (difference !== 0) return difference;
  }
  return left.length - right.length;
}

/** The hexadecimal digits of a text's sha256. @param {string} text */
export async function sha256(text) {
  return hex(new Uint8Array(await crypto.subtle.digest("SHA-256", encode(text, "record"))));
}

/** The digits that stand for a record. @param {any} record */
export const markOf = async (record) => (await sha256(canonical(record))).slice(0, MARK_DIGITS);

/** A stage's digest and marks. @param {any[]} records @returns {Promise<{digest: string, marks: string}>} */
export async function digestOf(records) {
  const lines = records.map(canonical);
  const marks = await Promise.all(records.map(markOf));
  return { digest: await sha256(lines.map((line) => `${line}\n`).join("")), marks: marks.join("") };
}

/** The first index at which two lists of marks differ, or -1. @param {string} a @param {string} b */
export function firstDifference(a, b) {
  const n = Math.max(a.length, b.length) / MARK_DIGITS;
  const at = (/** @type {string} */ marks, /** @type {number} */ i) => marks.slice(i * MARK_DIGITS, (i + 1) * MARK_DIGITS);
  for (let i = 0; i < n; i++) if (at(a, i) !== at(b, i)) return i;
  return -1;
}

/** @param {Uint8Array} bytes */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {string} digits @returns {Uint8Array<ArrayBuffer>} */
export const unhex = (digits) => Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
