// Use without a network: asks the site's service worker to keep the site, whatever else it does.

import { employ, jobsOf, registrationOf, SCRIPT, scopeOf } from "./serviceworker.js";

/** Keeps the site for use without a network; gives whether it is kept as this version, and false where there are no
 * service workers.
 *
 * Throws AssetError `asset.not_stored`, `asset.unreachable`.
 * @param {string} version of site.json @returns {Promise<boolean>} */
export async function keepOffline(version) {
  if (!("serviceWorker" in navigator) || !self.isSecureContext) return false;
  const policy = jobsOf((await registrationOf(SCRIPT))?.active, SCRIPT)?.policy ?? null;
  await employ(SCRIPT, { policy, keeps: true });
  const cacheName = `slm2-site ${scopeOf(SCRIPT)} ${version}`;
  return (await caches.match(new URL("site.json", SCRIPT), { cacheName })) !== undefined;
}
