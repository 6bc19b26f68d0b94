// Modules: the wasm kernels, compiled once for all who want them.

import { DeviceError } from "../protocol.js";
import { fetchVerified } from "../verified.js";

/** @typedef {import("../site.js").Site} Site */

/** Those that are compiled or on their way, by path: whoever needs one again may have no network.
 * @type {Map<string, Promise<WebAssembly.Module>>} */
const modules = new Map();

/** A kernel; one that could not be had is asked for again.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`; DeviceError `device.no_wasm`, `device.insecure_context`.
 * @param {URL} root @param {Site} site @param {"forward" | "tokenizer"} name @param {boolean} shared whether its
 * memory is @returns {Promise<WebAssembly.Module>} */
export function moduleOf(root, site, name, shared) {
  const path = `worker/wasm/${name}${shared ? ".shared" : ""}.wasm`;
  const found = modules.get(path) ?? compile(root, site, path);
  modules.set(path, found);
  found.catch(() => modules.delete(path));
  return found;
}

/** @param {URL} root @param {Site} site @param {string} path */
async function compile(root, site, path) {
  const bytes = await fetchVerified(root, site, path);
  try {
    return await WebAssembly.compile(bytes);
  } catch (error) {
    const url = new URL(path, root).href;
    throw new DeviceError("device.no_wasm", `${url}: ${error}`, { url });
  }
}
