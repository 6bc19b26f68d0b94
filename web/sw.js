// Service worker of the site's folder and what lies below. Two jobs, as a scope has one service worker; the query of
// its own address says which of them are asked for (web/serviceworker.js registers it):
//
//     sw.js                              keep       after a first visit the site opens without a network
//     sw.js?isolation=POLICY             isolate    on a server that sends no COOP and COEP, pages may share memory
//     sw.js?isolation=POLICY&keep        both
//
// Keeping: theory of operation. A cache holds every file of one version of the site but its models, which the loader
// keeps itself. Its name has this worker's scope, as the sites of an origin share their caches, and the
// version. Each file is checked against its sha256 before it is kept; site.json is kept last, so a cache that
// has it is whole. Opening the page first brings the cache up to date: site.json is asked of the network and,
// when its version is new, the files whose hash is new are fetched. Then, or when that fails or takes longer
// than UPDATE_MS, the page and whatever it asks for come from the whole cache, so that a page, its workers and
// Python are of one version even while the site is being replaced. A page that was open before a new version
// came is told so when it starts workers (worker/site.js). Responses are kept as the server sent them, headers
// included, so a page that was isolated stays isolated.
//
// Isolating: theory of operation. Documents, and the scripts of workers, whose policy must be their document's, get
// the headers that they lack as they are handed on, from the network or the cache. What the server does send is left
// as it is: where the headers are real, nothing is added. Nothing else is touched, and nothing of it is kept.

const FIXED = /^(runtime\/(?!.*\/pyodide-lock\.json$)|wheels\/)/;
// Models are the loader's to keep; what only the parity suite loads, and the documentation, is not for every visitor.
const LEFT_OUT = /^(models\/|docs\/|runtime\/[^/]+\/regex-)/;
const POLICIES = ["credentialless", "require-corp"];
// How long the page waits for a new version before it opens as the one that is kept.
const UPDATE_MS = 4000;

// What we use of the service worker's own interfaces: TypeScript has them in another library than the page's.
/** @typedef {Event & {request: Request, waitUntil(work: Promise<unknown>): void,
 *   respondWith(response: Promise<Response>): void}} WorkerEvent */
/** @typedef {{version: string, files: Record<string, {sha256: string}>}} Site */
/** @type {{location: {href: string, origin: string}, registration: {scope: string}, skipWaiting(): Promise<void>,
 *   addEventListener(type: "install" | "fetch", listener: (event: WorkerEvent) => void): void}} */
const worker = /** @type {any} */ (self);
const QUERY = new URL(worker.location.href).searchParams;
const POLICY = QUERY.get("isolation");
const KEEPS = POLICY === null || QUERY.has("keep");
const SCOPE = worker.registration.scope;
// No URL has a space: no site's prefix is the beginning of another's.
const PREFIX = `slm2-site ${SCOPE} `;
const SITE = new URL("site.json", SCOPE);

if (POLICY !== null && !POLICIES.includes(POLICY)) {
  throw new Error(`sw.js: isolation: found ${JSON.stringify(POLICY)}; allowed: ${POLICIES.join(" | ")}`);
}

worker.addEventListener("install", (event) => {
  const ready = KEEPS ? update() : Promise.resolve();
  event.waitUntil(ready.then(() => worker.skipWaiting(), refuse));
});
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const path = KEEPS ? pathOf(request) : null;
  const isolates = POLICY !== null && isPolicyBound(request);
  if (path === null && !isolates) return;
  let response;
  if (path === null) {
    response = fetch(request);
  } else if (request.mode !== "navigate") {
    response = answer(request, path);
  } else {
    const updated = update().catch(report); // without a network: as the version that is kept
    event.waitUntil(updated);
    const late = new Promise((resolve) => setTimeout(resolve, UPDATE_MS));
    response = Promise.race([updated, late]).then(() => answer(request, path));
  }
  event.respondWith(isolates ? response.then((found) => isolated(found, request)) : response);
});

/** Of this origin, and a document or a worker's script. @param {Request} request */
function isPolicyBound({ url, mode, destination }) {
  const kind = mode === "navigate" || destination === "worker" || destination === "sharedworker";
  return kind && new URL(url).origin === worker.location.origin;
}

/** The response with the headers of an isolated page, as far as it has none of its own.
 * @param {Response} found @param {Request} request */
async function isolated(found, request) {
  if (found.status === 0) return found; // a redirect, which the browser follows itself
  // WebKit may ask whether its own copy is good still; that one has not these headers.
  const response = found.status === 304 ? await fetch(request.url) : found;
  /** @type {[string, string][]} */
  const wanted = [["Cross-Origin-Embedder-Policy", /** @type {string} */ (POLICY)]];
  if (request.mode === "navigate") wanted.push(["Cross-Origin-Opener-Policy", "same-origin"]);
  const lacking = wanted.filter(([name]) => !response.headers.has(name));
  if (lacking.length === 0) return response;
  const headers = new Headers([...response.headers, ...lacking]);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}

/** Says why the site could not be kept, or could not be renewed. @param {any} error */
function report(error) {
  console.warn(`${error?.code ?? "asset.not_stored"}: ${error?.message ?? error}`);
}

/** The same, and installs nothing: the worker before, if there is one, stays. @param {unknown} error */
function refuse(error) {
  report(error);
  throw error;
}

/** The path below the site's root, without the query, or null for what is none of ours to keep.
 * @param {Request} request */
function pathOf(request) {
  if (request.method !== "GET" || request.headers.has("range") || !request.url.startsWith(SCOPE)) return null;
  const path = new URL(request.url).pathname.slice(new URL(SCOPE).pathname.length);
  if (LEFT_OUT.test(path)) return null;
  return path === "" ? "index.html" : path;
}

/** @param {string} path */
const urlOf = (path) => new URL(path === "index.html" ? "./" : path, SCOPE);

/** @param {Request} request @param {string} path */
async function answer(request, path) {
  const cache = await wholeCache();
  return (await cache?.match(urlOf(path))) ?? fetch(request);
}

/** The cache with the version that is kept, or null. */
async function wholeCache() {
  for (const name of (await ownNames()).reverse()) {
    const cache = await caches.open(name);
    if (await cache.match(SITE)) return cache;
  }
  return null;
}

/** This site's caches, oldest first. */
const ownNames = async () => (await caches.keys()).filter((name) => name.startsWith(PREFIX));

/** @type {Promise<void> | null} */
let running = null;

/** Keeps the network's version of the site, and no other; rejects, and keeps what there was, when it can't.
 * @returns {Promise<void>} */
function update() {
  running ??= keepNewest().finally(() => (running = null));
  return running;
}

async function keepNewest() {
  const response = await fetchOk(SITE, "no-cache");
  const { version, files } = /** @type {Site} */ (await response.clone().json());
  const before = await wholeCache();
  const name = PREFIX + version;
  const cache = await caches.open(name);
  if (await cache.match(SITE)) return;
  /** @type {Site | undefined} */
  const old = await (await before?.match(SITE))?.json();
  for (const [path, { sha256 }] of Object.entries(files)) {
    const url = urlOf(path);
    if (LEFT_OUT.test(path) || (await cache.match(url))) continue;
    const kept = FIXED.test(path) && old?.files[path]?.sha256 === sha256 ? await before?.match(url) : null;
    await cache.put(url, kept ?? (await fetchVerified(url, path, sha256)));
  }
  await cache.put(SITE, response);
  for (const other of await ownNames()) if (other !== name) await caches.delete(other);
}

/** @param {URL} url @param {string} path @param {string} sha256 */
async function fetchVerified(url, path, sha256) {
  const response = await fetchOk(url, FIXED.test(path) ? "default" : "no-cache");
  const digest = await crypto.subtle.digest("SHA-256", await response.clone().arrayBuffer());
  const found = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== sha256) throw failure("asset.hash", `${url}: found sha256 ${found}; allowed: ${sha256}`);
  if (!response.redirected) return response;
  // A navigation takes no answer that came by a redirection.
  const { status, statusText, headers } = response;
  return new Response(response.body, { status, statusText, headers });
}

/** @param {URL} url @param {RequestCache} cache */
async function fetchOk(url, cache) {
  const response = await fetch(url, { cache }).catch((error) => {
    throw failure("asset.unreachable", `${url}: ${error}`);
  });
  if (!response.ok) throw failure("asset.unreachable", `${url}: HTTP status ${response.status}`);
  return response;
}

/** An error with a code of docs/errors.md. @param {string} code @param {string} message */
const failure = (code, message) => Object.assign(new Error(message), { code });
