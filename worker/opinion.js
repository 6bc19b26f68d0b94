// The second opinion's worker: text to pieces by the package `regex`, in a Python of its own. Only the parity suite
// starts it; the wheel comes from this site's own runtime.
//
// The answer depends on no model, so nothing of one is loaded: py/slm2_web/parity/opinion.py is all that runs.

import { AssetError, check, errorFrom, Slm2Error } from "./protocol.js";
import { startPython } from "./python.js";
import { checkProtocol, checkSite, fetchSite } from "./site.js";

/** @typedef {import("./protocol.js").Channels} Channels */

// What this script came with; `opine` hears of a failure.
const ownSite = fetchSite(new URL("../", import.meta.url));
ownSite.catch(() => {});

const worker = /** @type {DedicatedWorkerGlobalScope} */ (/** @type {unknown} */ (self));
/** @type {{answer: (pattern: string, text: string) => string} | null} */
let opinion = null;

/** @param {Channels["opinion_to_page"]} message */
const tellPage = (message) => worker.postMessage(message);

worker.addEventListener("message", async ({ data }) => {
  try {
    checkProtocol(data, "opinion");
    const message = check("page_to_opinion", data);
    if (message.type === "opine") {
      opinion = await boot(message);
      tellPage({ type: "opines" });
    } else {
      split(message);
    }
  } catch (error) {
    const known = error instanceof Slm2Error;
    const { code, message, detail } = known ? error : errorFrom("protocol.internal", `opinion: ${error}`);
    const id = data?.type === "split" ? data.id : null;
    tellPage({ type: "error", id, code: /** @type {any} */ (code), message, detail });
  }
});

/** @param {import("./protocol.js").OpineMessage} request */
async function boot(request) {
  const site = await ownSite;
  checkSite(request.site, site.version, "opinion");
  const regex = Object.keys(site.files).find((path) => /\/regex-[^/]*\.whl$/.test(path));
  if (!regex) {
    const reason = "this site has no wheel of regex";
    throw new AssetError("asset.unreachable", `opinion: ${reason}`, { reason });
  }
  try {
    const python = await startPython(new URL(request.root), site, [regex, site.wheel]);
    python.pyimport("regex").destroy();
    return python.pyimport("slm2_web.parity.opinion");
  } catch (error) {
    if (error instanceof Slm2Error) throw error;
    const reason = String(error).trim().split("\n").at(-1) ?? "";
    throw new AssetError("asset.unreachable", `opinion: could not be loaded from this site: ${reason}`, { reason });
  }
}

/** @param {import("./protocol.js").SplitMessage} message */
function split({ id, pattern, data }) {
  if (opinion === null) throw errorFrom("protocol.state", "split: nothing is loaded", { found: "new" });
  const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  tellPage({ type: "pieces", id, answer: opinion.answer(pattern, text) });
}
