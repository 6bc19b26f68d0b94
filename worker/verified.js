// Verified: files of this site that a program takes as bytes, each of the hash that site.json has.

import { AssetError } from "./protocol.js";
import { sha256Hex } from "./store/hash.js";

/** @typedef {import("./site.js").Site} Site */

/** A file of the site, whole.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`.
 * @param {URL} root @param {Site} site @param {string} path @returns {Promise<Uint8Array<ArrayBuffer>>} */
export async function fetchVerified(root, site, path) {
  const url = new URL(path, root).href;
  let bytes;
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new AssetError("asset.unreachable", `${url}: ${reason}`, { url, reason });
  }
  const [found, allowed] = [await sha256Hex(bytes), site.files[path].sha256];
  if (found !== allowed) {
    throw new AssetError("asset.hash", `${url}: found sha256 ${found}; allowed: ${allowed}`, { url, found, allowed });
  }
  return bytes;
}
