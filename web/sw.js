// Service worker: after a first visit the site opens without a network, and always as one version.
//
// Theory of operation. A cache holds every file of one version of the site but its models, which the loader
// keeps itself. Its name has this worker's scope, as the sites of an origin share their caches, and the
// version. Each file is checked against its sha256 before it is kept; site.json is kept last, so a cache that
// has it is whole. Opening the page first brings the cache up to date: site.json is asked of the network and,
// when its version is new, the files whose hash is new are fetched. Then, or when that fails or takes longer
// than UPDATE_MS, the page and whatever it asks for come from the whole cache, so that a page, its workers and
// Python are of one version even while the site is being replaced. A page that was open before a new version
// came is told so when it starts workers (worker/site.js). Responses are kept and given as the server sent
// them, headers included, so a page that was isolated stays isolated.

const FIXED = /^(runtime\/(?!.*\/pyodide-lock\.json$)|wheels\/)/;
// Models are the loader's to keep; what only the parity suite loads is not for every visitor.
const LEFT_OUT = /^(models\/|runtime\/[^/]+\/regex-)/;
// How long the page waits for a new version before it opens as the one that is kept.
const UPDATE_MS = 4000;

// What we use of the service worker's own interfaces: TypeScript has them in another library than the page's.
/** @typedef {Event & {request: Request, waitUntil(work: Promise<unknown>): void,
 *   respondWith(response: Promise<Response>): void}} WorkerEvent */
/** @typedef {{version: string, files: Record<string, {sha256: string}>}} Site */
/** @type {{registration: {scope: string}, skipWaiting(): Promise<void>,
 *   addEventListener(type: "install" | "fetch", listener: (event: WorkerEvent) => void): void}} */
const worker = /** @type {any} */ (self);
const SCOPE = worker.registration.scope;
// No URL has a space: no site's prefix is the beginning of another's.
const PREFIX = `slm2-site ${SCOPE} `;
const SITE = new URL("site.json", SCOPE);

worker.addEventListener("install", (event) => event.waitUntil(update().then(() => worker.skipWaiting())));
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const path = pathOf(request);
  if (path === null || LEFT_OUT.test(path)) return;
  if (request.mode !== "navigate") {
    event.respondWith(answer(request, path));
    return;
  }
  const updated = update().catch(() => {}); // without a network: as the version that is kept
  event.waitUntil(updated);
  const late = new Promise((resolve) => setTimeout(resolve, UPDATE_MS));
  event.respondWith(Promise.race([updated, late]).then(() => answer(request, path)));
});

/** The path below the site's root, without the query, or null for what is none of ours.
 * @param {Request} request */
function pathOf(request) {
  if (request.method !== "GET" || request.headers.has("range") || !request.url.startsWith(SCOPE)) return null;
  const path = new URL(request.url).pathname.slice(new URL(SCOPE).pathname.length);
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
  if (found !== sha256) throw new Error(`${url}: sha256 ${found}`);
  return response;
}

/** @param {URL} url @param {RequestCache} cache */
async function fetchOk(url, cache) {
  const response = await fetch(url, { cache });
  if (!response.ok) throw new Error(`${url}: status ${response.status}`);
  return response;
}
