// Trusted: the one Trusted Types policy of a page, `slm2`. It says what a string has to be before the browser may run
// it or read it as HTML, under `require-trusted-types-for 'script'` and, if the page likes, `trusted-types slm2`.
//
//     script URL    of this origin, and one of the scripts that run outside the page
//     HTML          what markdown.js wrote, for its sanitiser alone
//
// A browser without Trusted Types takes strings, which have passed the same checks.

import { DeviceError } from "../worker/protocol.js";

const NAME = "slm2";
const SCRIPTS = [
  "worker/worker.js",
  "worker/loader.js",
  "worker/wasm/thread.js",
  "worker/tokenize.js",
  "worker/opinion.js",
  "sw.js",
];

/** @typedef {{createHTML: (html: string) => any, createScriptURL: (url: string) => any}} Policy */

/** Throws DeviceError `device.worker` for a URL that is none of ours. @param {string} text */
function ownScript(text) {
  const url = new URL(text, document.baseURI);
  if (url.origin === location.origin && SCRIPTS.some((path) => url.pathname.endsWith(`/${path}`))) return url.href;
  const allowed = `${SCRIPTS.join(" | ")} of ${location.origin}`;
  const message = `script: found ${url.href}; allowed: ${allowed}`;
  throw new DeviceError("device.worker", message, { place: "script", found: url.href, allowed });
}

const policy = makePolicy();

/** The policy; none where the browser knows none, or the page's own policy names others only.
 * @returns {Policy | null} */
function makePolicy() {
  const { trustedTypes } = /** @type {any} */ (globalThis);
  try {
    return trustedTypes?.createPolicy(NAME, { createHTML: (/** @type {string} */ html) => html, createScriptURL: ownScript });
  } catch (error) {
    console.warn(`the page's Content-Security-Policy has trusted-types without ${NAME}:`, error);
    return null;
  }
}

/** The URL of a worker's script, or of the service worker's, as the browser wants it.
 *
 * Throws DeviceError `device.worker` for a URL that is none of ours.
 * @param {string | URL} url @returns {string} which TypeScript takes a TrustedScriptURL for */
export function scriptUrl(url) {
  const text = ownScript(String(url));
  return policy ? policy.createScriptURL(text) : text;
}

/** The policy for markdown.js's sanitiser. */
export const htmlPolicy = policy;
