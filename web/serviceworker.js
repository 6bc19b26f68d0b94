// The service worker of a site's folder (sw.js): which of its jobs it does now, and asking for others.
//
// A scope has one service worker, and registering another script or another query replaces it. So whoever wants one of
// its jobs asks here, where the other is not forgotten.

import { AssetError } from "../worker/protocol.js";
import { scriptUrl } from "./trusted.js";

/** How a page comes to be isolated: https://html.spec.whatwg.org/multipage/browsers.html#coep
 * @typedef {"credentialless" | "require-corp"} Policy */
/** What the worker does: adds headers of this policy, or none; keeps the site for use without a network.
 * @typedef {{policy: Policy | null, keeps: boolean}} Jobs */

/** In the order in which they are tried: the first lets pages show pictures of other origins.
 * @type {readonly Policy[]} */
export const POLICIES = ["credentialless", "require-corp"];

/** sw.js at the root of the site that this script is of. */
export const SCRIPT = new URL("../sw.js", import.meta.url);

/** The folder whose pages a service worker may serve. @param {URL} script */
export const scopeOf = (script) => new URL("./", script);

/** The jobs of a worker; null for none, or for one that is not this script's.
 * @param {ServiceWorker | null | undefined} worker @param {URL} script @returns {Jobs | null} */
export function jobsOf(worker, script) {
  const url = new URL(worker?.scriptURL ?? "about:blank");
  if (url.origin + url.pathname !== script.origin + script.pathname) return null;
  const policy = POLICIES.find((name) => name === url.searchParams.get("isolation")) ?? null;
  return { policy, keeps: policy === null || url.searchParams.has("keep") };
}

/** The registration for exactly this script's folder, whoever made it; or null. @param {URL} script */
export async function registrationOf(script) {
  const scope = scopeOf(script).href;
  const found = await navigator.serviceWorker.getRegistration(scope);
  return found?.scope === scope ? found : null;
}

/** Has the worker do these jobs, and gives its registration when it is ready to do them.
 *
 * Throws AssetError: `asset.unreachable` when the script could not be had or may not run; `asset.not_stored` when the
 * site could not be kept, or its folder has a service worker of somebody else's.
 * @param {URL} script @param {Jobs} jobs @returns {Promise<ServiceWorkerRegistration>} */
export async function employ(script, { policy, keeps }) {
  const query = [...(policy ? [`isolation=${policy}`] : []), ...(policy && keeps ? ["keep"] : [])].join("&");
  const url = new URL(query && `?${query}`, script);
  const before = await registrationOf(script);
  const others = before?.active ?? before?.waiting ?? before?.installing;
  if (others && !jobsOf(others, script)) {
    const detail = { url: script.href, found: others.scriptURL, allowed: script.href };
    const message = `${scopeOf(script)}: found the service worker ${others.scriptURL}; allowed: none, or ${script}`;
    throw new AssetError("asset.not_stored", message, detail);
  }
  const registration = await navigator.serviceWorker.register(scriptUrl(url)).catch((error) => {
    const reason = String(error?.message ?? error);
    throw new AssetError("asset.unreachable", `${url}: ${reason}`, { url: url.href, reason });
  });
  const own = [registration.installing, registration.waiting, registration.active].find((w) => w?.scriptURL === url.href);
  if (!own || !(await isActivated(own))) {
    const message = `${url}: the service worker gave up; the browser's console says why`;
    throw new AssetError("asset.not_stored", message, { url: url.href });
  }
  return registration;
}

/** Whether it became active, or gave up. @param {ServiceWorker} worker @returns {Promise<boolean>} */
function isActivated(worker) {
  return new Promise((resolve) => {
    const look = () => {
      if (worker.state === "activated") resolve(true);
      else if (worker.state === "redundant") resolve(false);
    };
    worker.addEventListener("statechange", look);
    look();
  });
}
