// Transfer: conversations as a file, and back.
//
//     {"format": "slm2-conversations", "version": 1, "exported": TIME, "conversations": [{title, created, changed, turns}]}
//
// A file is read whole or not at all: one wrong member, and nothing of it is kept.

import { bad, checkExported, members, parse } from "./record.js";

/** @typedef {import("./record.js").Exported} Exported */

const FORMAT = "slm2-conversations";
const VERSION = 1;
const MAX_BYTES = 256 << 20;
const MAX_CONVERSATIONS = 10_000;

/** The text of a file. @param {readonly Exported[]} conversations */
export function exportText(conversations) {
  const own = conversations.map(({ title, created, changed, turns }) => ({ title, created, changed, turns }));
  const exported = new Date().toISOString();
  return `${JSON.stringify({ format: FORMAT, version: VERSION, exported, conversations: own }, null, 1)}\n`;
}

/** The name of a file with them. @param {readonly Exported[]} conversations */
export function exportName(conversations) {
  const title = conversations.length === 1 ? conversations[0].title : "conversations";
  const plain = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "");
  return `slm2-${plain.slice(0, 40) || "conversation"}.json`;
}

/** What a file holds. Throws FormatError `format.conversation`. @param {File} file @returns {Promise<Exported[]>} */
export async function importFile(file) {
  if (file.size > MAX_BYTES) throw bad(file.name, `${file.size} bytes`, `at most ${MAX_BYTES} bytes`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch (error) {
    throw bad(file.name, String(error), "a file of UTF-8 that can be read");
  }
  return importText(text, file.name);
}

/** The same of a text. @param {string} text @param {string} name of the file, for messages @returns {Exported[]} */
function importText(text, name) {
  const value = parse(text, name);
  if (value?.format !== FORMAT) throw bad(`${name}: format`, value?.format, FORMAT);
  if (value.version !== VERSION) throw bad(`${name}: version`, value.version, String(VERSION));
  const { conversations } = members(value, name, ["format", "version", "exported", "conversations"]);
  if (!Array.isArray(conversations)) throw bad(`${name}: conversations`, conversations, "a list");
  if (conversations.length > MAX_CONVERSATIONS) {
    throw bad(`${name}: conversations`, `${conversations.length} of them`, `at most ${MAX_CONVERSATIONS}`);
  }
  return conversations.map((each, i) => checkExported(each, `${name}: conversations[${i}]`));
}
