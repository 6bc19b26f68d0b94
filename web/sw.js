// Service worker: after a first visit the site opens without a network.
//
// Theory of operation. The page registers `sw.js?version=V`, V being the beginning of site.json's version, so
// a new site is a new worker. Installing fetches every file of site.json but the models, checks its sha256,
// and puts it into a cache of its own; with one wrong byte nothing is installed and the next visit tries
// again. Files whose path tells their content (runtime/, wheels/) come from that cache first. All others come
// from the network, which answers with 304 where nothing changed, and from the cache only when there is no
// network. Models never pass through here: the loader keeps them itself. Responses are stored and given as the
// server sent them, headers included, so a page that was isolated stays isolated.

const PREFIX = "slm2-site-";
const CACHE = PREFIX + new URL(self.location.href).searchParams.get("version");
const FIXED = /^(runtime\/(?!.*\/pyodide-lock\.json$)|wheels\/)/;
const LEFT_OUT = /^models\//;

// What we use of the service worker's own interfaces: TypeScript has them in another library than the page's.
/** @typedef {Event & {request: Request, waitUntil(work: Promise<unknown>): void,
 *   respondWith(response: Promise<Response>): void}} WorkerEvent */
/** @type {{registration: {scope: string}, skipWaiting(): Promise<void>,
 *   addEventListener(type: "install" | "activate" | "fetch", listener: (event: WorkerEvent) => void): void}} */
const worker = /** @type {any} */ (self);
const scope = () => worker.registration.scope;

worker.addEventListener("install", (event) => event.waitUntil(install()));
worker.addEventListener("activate", (event) => event.waitUntil(removeOthers()));
worker.addEventListener("fetch", (event) => {
  const { request } = event;
  const path = pathOf(request);
  if (path !== null && !LEFT_OUT.test(path)) event.respondWith(answer(request, path));
});

async function install() {
  const response = await fetch(new URL("site.json", scope()), { cache: "no-cache" });
  const site = await response.clone().json();
  if (PREFIX + site.version.slice(0, 16) !== CACHE) throw new Error(`site.json is of version ${site.version}`);
  const cache = await caches.open(CACHE);
  try {
    for (const [path, { sha256 }] of Object.entries(site.files)) {
      if (LEFT_OUT.test(path)) continue;
      await add(cache, path, sha256);
    }
    await cache.put(new URL("site.json", scope()), response);
  } catch (error) {
    await caches.delete(CACHE);
    throw error;
  }
  await worker.skipWaiting();
}

/** @param {Cache} cache @param {string} path @param {string} sha256 */
async function add(cache, path, sha256) {
  const url = new URL(path, scope());
  const response = await fetch(url, { cache: FIXED.test(path) ? "default" : "no-cache" });
  const digest = await crypto.subtle.digest("SHA-256", await response.clone().arrayBuffer());
  const found = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (!response.ok || found !== sha256) throw new Error(`${url}: status ${response.status}, sha256 ${found}`);
  await cache.put(url, response);
}

async function removeOthers() {
  const names = await caches.keys();
  await Promise.all(names.filter((n) => n.startsWith(PREFIX) && n !== CACHE).map((n) => caches.delete(n)));
}

/** The path below the site's root, without the query, or null for what is none of ours.
 * @param {Request} request */
function pathOf(request) {
  if (request.method !== "GET" || request.headers.has("range") || !request.url.startsWith(scope())) return null;
  const path = new URL(request.url).pathname.slice(new URL(scope()).pathname.length);
  return path === "" ? "index.html" : path;
}

/** @param {Request} request @param {string} path */
async function answer(request, path) {
  const kept = async () => (await caches.open(CACHE)).match(new URL(path, scope()));
  if (FIXED.test(path)) return (await kept()) ?? fetch(request);
  try {
    return await fetch(request);
  } catch (error) {
    const response = await kept();
    if (response) return response;
    throw error;
  }
}
