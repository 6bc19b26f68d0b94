// Share: a model that all tabs of an origin have together. `SLM2.share(options)`; documented in docs/client.md.
//
// Theory of operation. Who wants the same model (a Place, line.js) waits for one lock (candidate.js); the tab that gets it
// is the host (host.js), loads the model and serves all, itself among them (slm.js). The browser takes the lock from a tab
// that closes or crashes and gives it to the next one, which loads the model from storage and calls the others. A reply
// that was under way is made again there (course.js): all executors and tabs give the same bits, so it is the same reply.

import { load, prepare } from "../client.js";
import { hold, missing, tabLock } from "./line.js";
import { newId } from "../ids.js";
import { SharedSlm } from "./slm.js";
import { PROTOCOL_VERSION } from "../../worker/protocol.js";

/** @typedef {import("../client.js").LoadOptions} LoadOptions */
/** Why a model is this tab's own. @typedef {"locks" | "channels" | "silent"} Why */
/** @typedef {{shared: boolean, here: boolean, why: Why | null}} Sharing */

/** The model, shared with the other tabs of this origin that ask for the same: site and its version, model, executor,
 * context. Options and errors are those of `SLM2.load`.
 *
 * Where the browser has no locks or no channels, or the host does not answer, it is this tab's own: `info.sharing` tells.
 * @param {LoadOptions} [options] @returns {Promise<SharedSlm | Awaited<ReturnType<typeof load>>>} */
export async function share(options = {}) {
  const { site, ...asked } = await prepare(options);
  const { root, workers, model, executor, max_seq_len } = asked;
  const name = JSON.stringify([PROTOCOL_VERSION, site.version, root.href, workers.href, model, executor, max_seq_len]);
  /** @type {import("./line.js").Place} */
  const place = { ...asked, site: site.version, name };
  let why = /** @type {Why | null} */ (missing());
  if (why === null) {
    const id = newId();
    const release = await hold(tabLock(id)).catch(() => null); // a page without an origin of its own may hold none
    if (release) {
      const slm = new SharedSlm(place, id, release, options);
      if (await slm.joined) return slm;
    }
    why = release ? "silent" : "locks";
  }
  const slm = await load(options);
  slm.info = Object.freeze({ ...slm.info, sharing: { shared: false, here: true, why } });
  return slm;
}
