// The bare kernel (kernel/bare.c) in as many workers as there are threads, each with its share of the rows.

/** @type {Worker[]} */
let workers = [];
// Passes that a sample takes: about as long as `SAMPLE_MS`.
let passes = 1;
const SAMPLE_MS = 1500;

/** @param {Worker} worker @param {object} message @returns {Promise<any>} */
function ask(worker, message) {
  return new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => (data.error ? reject(new Error(data.error)) : resolve(data));
    worker.onerror = (event) => reject(new Error(event.message || "the worker did not start"));
    worker.postMessage(message);
  });
}

/** @param {object} message */
const askAll = (message) => Promise.all(workers.map((worker) => ask(worker, message)));

/** @param {{threads: number, matrices: [number, number, number][]}} options matrices: kind, rows, cols */
export async function load({ threads, matrices }) {
  const url = new URL("../bare_worker.js", import.meta.url);
  workers = Array.from({ length: threads }, () => new Worker(url, { type: "module" }));
  await Promise.all(workers.map((worker, thread) => ask(worker, { matrices, thread, threads })));
  const start = performance.now();
  for (; performance.now() - start < SAMPLE_MS / 2; passes++) await askAll({ passes: 1 });
  passes *= 2;
  return { adapter: `${threads} threads` };
}

/** As if each pass were a token. */
export async function sample() {
  const times = await askAll({ passes });
  return { decode_ms: Math.max(...times.map(({ ms }) => ms)), decode_tokens: passes };
}

export async function unload() {
  for (const worker of workers) worker.terminate();
}
