// Site: site.json, and the check that page, worker and loader come from the same version of it.
//
// Each of the three asks for site.json while its own scripts have just been loaded, so it knows the version
// that it came with. The page sends its version along; the other two compare. The worker asks once more when
// everything is loaded: what it fetched in between was of one version if both answers are.

import { AssetError, DeviceError, PROTOCOL_VERSION, ProtocolError } from "./protocol.js";

/** @typedef {{bytes: number, sha256: string}} SiteFile */
/** @typedef {{version: string, default_model: string, models: string[], runtime: string, stdlib: string,
 *   numpy: string, wheel: string, files: Record<string, SiteFile>}} Site */

/** site.json. Throws AssetError `asset.unreachable`; DeviceError `device.insecure_context` for a site that was opened as
 * a file, where Firefox gets so far. @param {URL} root @returns {Promise<Site>} */
export async function fetchSite(root) {
  const url = new URL("site.json", root);
  if (url.protocol === "file:") {
    const allowed = "a site that a web server sends, over HTTPS or from localhost";
    throw new DeviceError("device.insecure_context", `found ${root}; allowed: ${allowed}`, { found: root.href, allowed });
  }
  /** @type {number | undefined} */
  let status;
  try {
    const response = await fetch(url, { cache: "no-cache" });
    if (!response.ok) throw new Error(`HTTP status ${(status = response.status)}`);
    return await response.json();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const detail = { url: url.href, reason, ...(status && { status }) };
    throw new AssetError("asset.unreachable", `${url}: ${reason}`, detail);
  }
}

/** Throws ProtocolError `protocol.version` if a first message speaks another protocol: it has other fields.
 * @param {any} message @param {string} who receives it */
export function checkProtocol(message, who) {
  const version = message?.version;
  if (version !== undefined && version !== PROTOCOL_VERSION) throw mixed("protocol", version, PROTOCOL_VERSION, who);
}

/** Throws ProtocolError `protocol.version` if the page is of another version of the site.
 * @param {string} page @param {string} own @param {string} who compares */
export function checkSite(page, own, who) {
  if (page !== own) throw mixed("site", page.slice(0, 16), own.slice(0, 16), who);
}

/** @param {string} what @param {unknown} found @param {unknown} allowed @param {string} who */
const mixed = (what, found, allowed, who) =>
  new ProtocolError("protocol.version", `${what}: the page is of version ${found}, the ${who} of ${allowed}`, {
    what,
    found,
    allowed,
  });
