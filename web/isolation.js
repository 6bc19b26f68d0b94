// Isolation on servers that send no COOP and COEP: asks the site's service worker for them, and loads the page again.
//
//     isolated already (by real headers, or by the worker) --------------------------------> nothing to do
//     in a frame, no service workers, outside of the worker's folder ----------------------> why not
//     worker with `credentialless` -> reload -> not isolated -> `require-corp` -> reload --> "refused", worker gone
//
// Each policy costs one reload, and each tab counts them: a browser that is not isolated after both is left alone for
// as long as the tab lives. A page in a frame is as isolated as the page around it, whatever headers it has itself,
// so it is never loaded again. When isolation is not asked for any more, the worker that gave it is unregistered.

import { badInput } from "./request.js";
import { AssetError, Slm2Error } from "../worker/protocol.js";
import { employ, jobsOf, POLICIES, registrationOf, SCRIPT, scopeOf } from "./serviceworker.js";

/** @typedef {"headers" | "service-worker"} Mode */
/** Why a page is not isolated. @typedef {"off" | "frame" | "unsupported" | "scope" | "refused" | "failed"} Why */
/** @typedef {{isolated: boolean, by: Mode | null, why: Why | null, error: Slm2Error | null}} Isolation */

/** @type {readonly Mode[]} */
const MODES = ["headers", "service-worker"];
// A page that is still there after so long is not being loaded again: somebody has held it back.
const RELOAD_MS = 10_000;

/** Isolates the page, if that is asked for and can be done; loads it again for that, at most once for each policy, and
 * then gives no answer. Call it before anything that a reload would lose.
 *
 * `mode` is by default what `<meta name="slm2-isolation" content="…">` says, and without one `"headers"`: the server's
 * headers alone count. `worker` is the URL of sw.js, by default the one at the root of this site; a copy of it in a
 * folder above isolates the pages there. `beforeReload` is called when the page is about to be loaded again.
 *
 * Throws InputError `input.params`. What else goes wrong is in the answer: a page works without isolation.
 * @param {{mode?: Mode, worker?: string | URL, beforeReload?: () => void}} [options] @returns {Promise<Isolation>} */
export async function isolate(options = {}) {
  const mode = options.mode ?? document.querySelector("meta[name=slm2-isolation]")?.getAttribute("content") ?? MODES[0];
  const script = options.worker === undefined ? SCRIPT : ownScript(options.worker);
  const { beforeReload = () => {} } = options;
  if (mode !== "headers" && mode !== "service-worker") {
    throw badInput("input.params", "options.mode", mode, MODES.join(" | "));
  }
  try {
    return mode === "headers" ? await goWithout(script) : await goWith(script, beforeReload);
  } catch (error) {
    const reason = String(/** @type {any} */ (error)?.message ?? error);
    const known = error instanceof Slm2Error;
    return notIsolated("failed", known ? error : new AssetError("asset.not_stored", `isolation: ${reason}`, { reason }));
  }
}

/** @param {URL} script @returns {Promise<Isolation>} */
async function goWithout(script) {
  const by = canHaveWorkers() ? controllerOf(script) : null;
  if (canHaveWorkers()) await dismiss(script);
  // This page stays as it was loaded; the next one is not isolated any more.
  return self.crossOriginIsolated ? isolatedBy(by) : notIsolated("off");
}

/** @param {URL} script @param {() => void} beforeReload @returns {Promise<Isolation>} */
async function goWith(script, beforeReload) {
  const count = new Count(script);
  if (self.crossOriginIsolated) {
    count.forget();
    return isolatedBy(canHaveWorkers() ? controllerOf(script) : null);
  }
  if (self.crossOriginIsolated === undefined || !canHaveWorkers()) return notIsolated("unsupported");
  if (window.top !== window) return notIsolated("frame");
  if (!location.href.startsWith(scopeOf(script).href)) return notIsolated("scope");
  const policy = await nextPolicy(script);
  if (policy === null || count.value >= POLICIES.length) {
    await dismiss(script);
    return notIsolated("refused");
  }
  count.value += 1; // where that can't be counted, nothing is loaded again: it throws
  const current = jobsOf((await registrationOf(script))?.active, script);
  if (current?.policy !== policy) await employ(script, { policy, keeps: false });
  beforeReload();
  location.reload();
  await new Promise((resolve) => setTimeout(resolve, RELOAD_MS));
  return notIsolated("refused");
}

/** The policy to try: the one after that which this page came with; that of the worker that it came past, as after a
 * forced reload; else the first. Null after the last. @param {URL} script */
async function nextPolicy(script) {
  const tried = controllerOf(script)?.policy;
  if (tried) return POLICIES[POLICIES.indexOf(tried) + 1] ?? null;
  return jobsOf((await registrationOf(script))?.active, script)?.policy ?? POLICIES[0];
}

/** Unregisters the worker if it isolates pages. @param {URL} script */
async function dismiss(script) {
  const registration = await registrationOf(script);
  const worker = registration?.active ?? registration?.waiting ?? registration?.installing;
  if (jobsOf(worker, script)?.policy) await registration?.unregister();
}

/** The jobs of the worker that this page came by. @param {URL} script */
const controllerOf = (script) => jobsOf(navigator.serviceWorker.controller, script);

/** Browsers offer none to pages that came insecurely, and refuse them to pages that were opened as files. */
function canHaveWorkers() {
  return self.isSecureContext && "serviceWorker" in navigator && location.protocol !== "file:";
}

/** How many times this tab was loaded again for a worker's sake. */
class Count {
  #key;

  /** @param {URL} script */
  constructor(script) {
    this.#key = `slm2-isolation ${script}`;
  }

  get value() {
    return Number(sessionStorage.getItem(this.#key));
  }

  set value(n) {
    sessionStorage.setItem(this.#key, String(n));
  }

  forget() {
    try {
      sessionStorage.removeItem(this.#key);
    } catch (error) {
      console.warn("isolation: this page may store nothing:", error);
    }
  }
}

/** @param {import("./serviceworker.js").Jobs | null} worker that the page came by @returns {Isolation} */
const isolatedBy = (worker) => ({
  isolated: true,
  by: worker?.policy ? "service-worker" : "headers",
  why: null,
  error: null,
});

/** @param {Why} why @param {Slm2Error | null} [error] @returns {Isolation} */
const notIsolated = (why, error = null) => ({ isolated: false, by: null, why, error });

/** @param {string | URL} worker */
function ownScript(worker) {
  const url = URL.canParse(worker, document.baseURI) ? new URL(worker, document.baseURI) : null;
  if (url?.origin === location.origin && url.search === "" && url.hash === "") return url;
  throw badInput("input.params", "options.worker", worker, `a URL of ${location.origin} without a query`);
}
