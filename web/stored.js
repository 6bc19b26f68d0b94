// Stored: what this origin has stored of models, as a page sees it. `SLM2.storage` in client.js, which fetches this
// module when it is asked; documented in docs/client.md. A page reads and removes; only the loader writes.

import { InputError, ProtocolError } from "../worker/protocol.js";
import { ifFree } from "../worker/store/lock.js";
import { recordsOf, sweep } from "../worker/store/records.js";
import { readableStore } from "../worker/store/store.js";

/** @typedef {import("../worker/store/store.js").Store} Store */
/** `stored` says whether the whole file is there, `stored_bytes` how much of it; `verified` when it was last read and
 * its hash compared, ISO 8601, or null.
 * @typedef {{name: string, bytes: number, sha256: string, stored: boolean, stored_bytes: number,
 *   verified: string | null}} StoredFile */
/** One version of a model of one site; `name` is what `load` calls it, `url` that of its folder. `complete` when all
 * of its files are stored. Files that models share count in each.
 * @typedef {{name: string, title: string, url: string, bytes: number, stored_bytes: number, complete: boolean,
 *   files: StoredFile[]}} StoredModel */
/** `kind` is where files are kept, `usage` and `quota` the origin's bytes as the browser estimates them, or null where
 * it does not; `models_bytes` those of the stored files; `persisted` whether the browser drops them only when asked.
 * @typedef {{kind: "cache" | "memory", usage: number | null, quota: number | null, models_bytes: number,
 *   persisted: boolean}} Estimate */

/** Every model that is stored, as a whole or in part, the one used last first.
 * @returns {Promise<StoredModel[]>} */
export async function list() {
  const store = await readableStore();
  if (!store) return [];
  const lengths = await store.files();
  const models = (await recordsOf(store)).map(({ record }) => modelOf(record, lengths));
  return models.filter((model) => model !== null);
}

/** Removes a model from this origin, whichever site has stored it, or, with "*", every model; files that another
 * model needs stay. A model that is loaded goes on; the next load fetches it.
 *
 * Rejects with InputError `input.model` when no such model is stored, ProtocolError `protocol.state` when one of its
 * files is being fetched or read at this moment.
 * @param {string} name @returns {Promise<void>} */
export async function remove(name) {
  const names = (await list()).map((model) => model.name);
  if (typeof name !== "string" || (name !== "*" && !names.includes(name))) {
    const allowed = [...new Set(names), "*"].join(" | ");
    const message = `storage.remove: found ${JSON.stringify(name) ?? "nothing"}; allowed: ${allowed}`;
    throw new InputError("input.model", message, { found: String(name), allowed });
  }
  const store = await readableStore();
  if (!store) return;
  await refuseBusy(store, name);
  await sweep(store, ({ url }) => name === "*" || nameOf(url) === name);
}

/** What the storage holds and could hold. @returns {Promise<Estimate>} */
export async function estimate() {
  const store = await readableStore();
  const models_bytes = store ? sum([...(await store.files()).values()]) : 0;
  const told = await navigator.storage?.estimate?.().catch(() => null);
  const persisted = (await navigator.storage?.persisted?.().catch(() => false)) ?? false;
  const kind = store?.kind ?? "memory";
  return { kind, usage: told?.usage ?? null, quota: told?.quota ?? null, models_bytes, persisted };
}

/** Asks the browser to keep what is stored when space runs short; it may ask the user. Right when a model has proved
 * useful, after a first reply, and not before. Gives whether it will be kept.
 * @returns {Promise<boolean>} */
export async function persist() {
  if (!navigator.storage?.persist) return false;
  return (await navigator.storage.persisted()) || navigator.storage.persist();
}

/** @param {import("../worker/store/records.js").Record_} record @param {Map<string, number>} lengths
 * @returns {StoredModel | null} null for a manifest that this program didn't write */
function modelOf({ url, manifest, verified }, lengths) {
  const json = readJson(manifest);
  const shards = json?.weights?.shards ?? [];
  if (!Array.isArray(shards)) return null;
  const entries = [json?.tokenizer, ...shards];
  if (!entries.every((each) => typeof each?.sha256 === "string" && Number.isSafeInteger(each.bytes))) return null;
  const files = entries.map(({ file, bytes, sha256 }) => {
    const stored_bytes = Math.min(lengths.get(sha256) ?? 0, bytes);
    const ms = verified[sha256];
    const stored = stored_bytes === bytes;
    return {
      name: String(file),
      bytes,
      sha256,
      stored,
      stored_bytes,
      verified: stored && typeof ms === "number" ? new Date(ms).toISOString() : null,
    };
  });
  const [bytes, stored_bytes] = [sum(files.map((f) => f.bytes)), sum(files.map((f) => f.stored_bytes))];
  const [name, folder] = [nameOf(url), new URL("./", url).href];
  const complete = files.every((file) => file.stored);
  return { name, title: String(json.title ?? name), url: folder, bytes, stored_bytes, complete, files };
}

/** @param {string} text @returns {any} null for what is no JSON */
function readJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Throws when a file that is to go is in use now. @param {Store} store @param {string} name */
async function refuseBusy(store, name) {
  for (const { record } of await recordsOf(store)) {
    if (name !== "*" && nameOf(record.url) !== name) continue;
    for (const { sha256, name: file } of modelOf(record, new Map())?.files ?? []) {
      if (await ifFree(sha256, async () => true)) continue;
      const message = `storage.remove: ${nameOf(record.url)}: ${file} is being fetched or read`;
      throw new ProtocolError("protocol.state", message, { state: "busy", file });
    }
  }
}

/** A model's name, of the URL of its manifest. @param {string} url */
const nameOf = (url) => new URL(url).pathname.split("/").at(-2) ?? "";

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
