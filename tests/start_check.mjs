// What a start of Python takes under Node.js: processor milliseconds of each step, medians of three. And what Pyodide's
// memory snapshot would give in its place.
//
//     node tests/start_check.mjs SITE [--snapshot]
//
// SITE: a built site; one that was built without Node.js on the PATH has sources in the place of bytecode.

import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";

const [folder, ...options] = process.argv.slice(2);
const at = (/** @type {string} */ path) => resolve(folder, path);
const site = JSON.parse(readFileSync(at("site.json"), "utf8"));
const { loadPyodide } = await import(pathToFileURL(at(`${site.runtime}/pyodide.mjs`)).href);
const settings = () => ({
  indexURL: `${at(site.runtime)}/`,
  stdLibURL: at(site.stdlib),
  env: { HOME: "/home/pyodide", PYTHONHASHSEED: "0" },
});

/** @param {() => unknown} work */
async function processorMs(work) {
  const start = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(start);
  return Math.round((user + system) / 1e3);
}

/** Unpacks a wheel and imports a module of it. @param {any} python @param {string} wheel @param {string} name */
function add(python, wheel, name) {
  const extractDir = python.runPython("import site; site.getsitepackages()[0]");
  python.unpackArchive(new Uint8Array(readFileSync(at(wheel))), "wheel", { extractDir });
  python.pyimport(name).destroy();
}

async function start() {
  /** @type {any} */
  let python;
  return {
    loadPyodide: await processorMs(async () => (python = await loadPyodide(settings()))),
    numpy: await processorMs(() => add(python, site.numpy, "numpy")),
    slm2_web: await processorMs(() => add(python, site.wheel, "slm2_web.bridge")),
  };
}

async function snapshot() {
  const make = async () => (await loadPyodide({ ...settings(), _makeSnapshot: true })).makeMemorySnapshot();
  const [one, other] = [await make(), await make()];
  let differing = 0;
  for (let i = 0; i < one.length; i++) differing += Number(one[i] !== other[i]);
  const load_ms = await processorMs(() => loadPyodide({ ...settings(), _loadSnapshot: one }));
  const python = await loadPyodide({ ...settings(), _makeSnapshot: true });
  add(python, site.numpy, "numpy");
  let with_numpy = "loads";
  try {
    await loadPyodide({ ...settings(), _loadSnapshot: python.makeMemorySnapshot() });
  } catch (error) {
    with_numpy = String(error).trim().split("\n").at(-1) ?? "";
  }
  return { bytes: one.length, gzip_bytes: gzipSync(one).length, differing, load_ms, with_numpy };
}

if (process.env.START_CHECK_ONCE) {
  console.log(JSON.stringify(options.includes("--snapshot") ? await snapshot() : await start()));
} else {
  const run = () => {
    const env = { ...process.env, START_CHECK_ONCE: "1" };
    const out = execFileSync(process.execPath, process.argv.slice(1), { env, encoding: "utf8" });
    return JSON.parse(out.trim().split("\n").at(-1) ?? "");
  };
  const runs = Array.from({ length: 3 }, run);
  const median = (/** @type {string} */ name) => runs.map((each) => each[name]).toSorted((a, b) => (a < b ? -1 : 1))[1];
  console.log(Object.fromEntries(Object.keys(runs[0]).map((name) => [name, median(name)])));
}
