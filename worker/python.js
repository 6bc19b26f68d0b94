// Python: Pyodide with packages, all from this site.
//
// Theory of operation. Everything is asked for at once. What is data is hashed before anybody uses it (verified.js);
// Pyodide's two scripts are modules, and a worker's imports have no place for a hash. Pyodide fetches its data by itself,
// and where it can use a file not at all it writes that on the console and waits for ever. So while it loads, its `fetch`
// gives it the files that are on their way already, and of one that fails, or of a WebAssembly that the browser refuses,
// whoever has called hears here. Wheels are unpacked into site-packages: there is nothing to resolve or to install.

import { fetchVerified } from "./verified.js";

/** @typedef {import("./site.js").Site} Site */

/** Pyodide's scripts, and its data, the largest first. @param {Site} site */
const filesOf = ({ runtime, stdlib }) => ({
  scripts: [`${runtime}/pyodide.mjs`, `${runtime}/pyodide.asm.mjs`],
  data: [`${runtime}/pyodide.asm.wasm`, stdlib, `${runtime}/pyodide-lock.json`],
});

/** The paths of all that `startPython` fetches. @param {Site} site @param {string[]} wheels */
export function pathsOf(site, wheels) {
  const { scripts, data } = filesOf(site);
  return [...scripts, ...data, ...wheels];
}

/** Python, with what is in the wheels ready to be imported.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`; ProtocolError `protocol.version`; DeviceError
 * `device.insecure_context`; what `import` of a script throws that can't be had, and WebAssembly of a module that can't
 * be used.
 * @param {URL} root @param {Site} site @param {string[]} wheels paths of `site.files`
 * @returns {Promise<any>} Pyodide's interface */
export async function startPython(root, site, wheels) {
  const { scripts, data } = filesOf(site);
  const imports = scripts.map((path) => import(new URL(path, root).href));
  const files = [...data, ...wheels].map((path) => fetchVerified(root, site, path));
  const urls = data.map((path) => new URL(path, root).href);
  const loading = imports[0].then(({ loadPyodide }) =>
    loadPyodide({
      indexURL: new URL(`${site.runtime}/`, root).href,
      packageBaseUrl: new URL(`${site.runtime}/`, root).href, // nothing is asked of its CDN
      stdLibURL: urls[1],
      lockFileURL: urls[2],
      stdout: console.log,
      stderr: console.warn,
    }),
  );

  const fetchPlainly = self.fetch;
  self.fetch = (resource, options) => {
    const url = resource instanceof Request ? resource.url : new URL(resource, self.location.href).href;
    const file = files[urls.indexOf(url)];
    if (!file) return fetchPlainly(resource, options);
    const headers = { "Content-Type": url.endsWith(".wasm") ? "application/wasm" : "application/octet-stream" };
    // A file that fails is heard of below; Pyodide would only complain of it.
    return file.then((bytes) => new Response(bytes, { headers })).catch(() => new Promise(() => {}));
  };
  const { instantiateStreaming } = WebAssembly;
  const refused = new Promise((_, reject) => {
    WebAssembly.instantiateStreaming = (...given) => {
      const made = instantiateStreaming.apply(WebAssembly, given);
      made.catch(reject);
      return made;
    };
  });
  const started = Promise.race([loading, refused]);
  try {
    const [pyodide, found] = await Promise.all([started, Promise.all(files), ...imports]);
    const extractDir = sitePackages(pyodide);
    for (const wheel of found.slice(data.length)) pyodide.unpackArchive(wheel, "wheel", { extractDir });
    return pyodide;
  } finally {
    self.fetch = fetchPlainly;
    WebAssembly.instantiateStreaming = instantiateStreaming;
  }
}

/** Where packages lie, as a path. @param {any} pyodide @returns {string} */
export const sitePackages = (pyodide) => pyodide.runPython("import site; site.getsitepackages()[0]");
