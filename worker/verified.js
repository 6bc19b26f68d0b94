// Verified: files of this site that a program takes as bytes, each of the hash that site.json has.

import { AssetError, DeviceError } from "./protocol.js";
import { checkSite, fetchSite } from "./site.js";
import { sha256Hex } from "./store/hash.js";

/** @typedef {import("./site.js").Site} Site */

// python.js puts another `fetch` in the place of the browser's for a while.
const fetchPlainly = self.fetch.bind(self);

/** A file of the site, whole. A copy in the HTTP cache that is not the file any more is fetched anew, once.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`; ProtocolError `protocol.version` when the site has been replaced
 * meanwhile; DeviceError `device.insecure_context`.
 * @param {URL} root @param {Site} site @param {string} path one of `site.files`
 * @returns {Promise<Uint8Array<ArrayBuffer>>} */
export async function fetchVerified(root, site, path) {
  if (!self.crypto?.subtle) {
    const message = `${self.location.origin} is not a secure context: the browser offers no SHA-256 to verify files with`;
    throw new DeviceError("device.insecure_context", message);
  }
  const url = new URL(path, root).href;
  const allowed = site.files[path].sha256;
  let found = "";
  for (const cache of /** @type {RequestCache[]} */ (["default", "reload"])) {
    const bytes = await fetchBytes(url, cache);
    found = await sha256Hex(bytes);
    if (found === allowed) return bytes;
  }
  const now = await fetchSite(root).catch(() => site);
  checkSite(site.version, now.version, "server");
  throw new AssetError("asset.hash", `${url}: found sha256 ${found}; allowed: ${allowed}`, { url, found, allowed });
}

/** @param {string} url @param {RequestCache} cache */
async function fetchBytes(url, cache) {
  try {
    const response = await fetchPlainly(url, { cache });
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return new Uint8Array(await response.arrayBuffer());
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new AssetError("asset.unreachable", `${url}: ${reason}`, { url, reason });
  }
}
