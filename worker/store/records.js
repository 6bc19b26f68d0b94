// Records: which versions of which models this origin has stored. A record is a manifest with its address, and when
// each of its files was last verified. A file that no record names is of no use to anybody and is removed.
//
// A record is written before the files that it names, and as incomplete; when they are verified it is written anew,
// and if all of them are stored the records of other versions of the model go. So a new version that is only half
// there takes nothing away from the old one.

import { ifFree, locked } from "./lock.js";

/** @typedef {import("./store.js").Store} Store */
/** `url` of the manifest; `ms` when this was written, milliseconds since 1970; `complete` when all files were stored
 * then; `verified` such a time by hash, of stored files.
 * @typedef {{url: string, ms: number, complete: boolean, verified: Record<string, number>, manifest: string}} Record_ */

const LOCK = "records";

/** Every record by its hash, newest first. @param {Store} store @returns {Promise<{id: string, record: Record_}[]>} */
export const recordsOf = (store) => locked(LOCK, undefined, () => read(store));

/** As `recordsOf`, by who holds the lock. @param {Store} store */
async function read(store) {
  const list = [];
  for (const [id, text] of await store.records()) {
    const record = parse(text);
    if (record) list.push({ id, record });
  }
  return list.sort((a, b) => b.record.ms - a.record.ms);
}

/** The record to use when the server can't be asked: the newest that is complete, else the newest.
 * @param {Store} store @param {string} url @returns {Promise<Record_ | null>} */
export async function recordOf(store, url) {
  const own = (await recordsOf(store)).map(({ record }) => record).filter((record) => record.url === url);
  return own.find(({ complete }) => complete) ?? own[0] ?? null;
}

/** Writes down that this manifest's files are being stored, unless that is known.
 * @param {Store} store @param {string} url @param {string} manifest @returns {Promise<void>} */
export function begin(store, url, manifest) {
  return locked(LOCK, undefined, async () => {
    const known = (await read(store)).some(({ record }) => record.url === url && record.manifest === manifest);
    if (known) return;
    await store.putRecord(JSON.stringify({ url, ms: Date.now(), complete: false, verified: {}, manifest }));
  });
}

/** Writes down which files of this manifest are stored, all having been verified now; forgets the model's other
 * versions if those are all.
 * @param {Store} store @param {string} url @param {string} manifest
 * @param {readonly {sha256: string, bytes: number}[]} files @returns {Promise<void>} */
export function complete(store, url, manifest, files) {
  return locked(LOCK, undefined, async () => {
    const lengths = await store.files();
    const stored = files.filter(({ sha256, bytes }) => lengths.get(sha256) === bytes);
    const isComplete = stored.length === files.length;
    const before = (await read(store)).filter(({ record }) => record.url === url);
    const ms = Date.now();
    const verified = Object.fromEntries(stored.map(({ sha256 }) => [sha256, ms]));
    const id = await store.putRecord(JSON.stringify({ url, ms, complete: isComplete, verified, manifest }));
    for (const old of before) {
      if (old.id !== id && (isComplete || old.record.manifest === manifest)) await store.removeRecord(old.id);
    }
  });
}

/** Removes the records that `isGone` names, and then every file that no record names. The files are listed before the
 * records are read, and a record is written before its files: a model that is being loaded meanwhile loses none.
 * @param {Store} store @param {(record: Record_) => boolean} isGone @returns {Promise<void>} */
export async function sweep(store, isGone) {
  const files = await store.files();
  const named = await locked(LOCK, undefined, async () => {
    for (const { id, record } of await read(store)) if (isGone(record)) await store.removeRecord(id);
    // A record may be of a version of this program to come: whatever looks like a hash in it is one.
    const texts = [...(await store.records()).values()];
    return new Set(texts.flatMap((text) => [...text.matchAll(/\b[0-9a-f]{64}\b/g)].map(([hash]) => hash)));
  });
  for (const sha256 of files.keys()) {
    if (!named.has(sha256)) await ifFree(sha256, () => store.remove(sha256));
  }
}

/** @param {string} text @returns {Record_ | null} */
function parse(text) {
  try {
    const { url, ms, complete, verified, manifest } = JSON.parse(text);
    const isRecord = typeof url === "string" && typeof manifest === "string" && typeof ms === "number";
    return isRecord ? { url, ms, complete: complete === true, verified: verified ?? {}, manifest } : null;
  } catch {
    return null; // of another version of this program: it stays, and so do the files that it names
  }
}
