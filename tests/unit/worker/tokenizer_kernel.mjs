// Encodes what standard input asks for by worker/wasm/tokenizer.js, as the browser does; answers on standard
// output.
//
// Request: {worker, file, texts: [{data: base64, spans}], shared: threads that encode at once, or 0}
// Answer:  a list of ids, or of {name, status, offset}, for each text; of each thread one such list.

import { readFileSync } from "node:fs";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

/** @param {string} folder */
const load = async (folder) => import(`${folder}/wasm/tokenizer.js`);

/** @param {any} kernel @param {{data: string, spans: number[]}[]} texts */
function answers(kernel, texts) {
  return texts.map(({ data, spans }) => {
    try {
      return [...kernel.encode(Buffer.from(data, "base64"), Uint32Array.from(spans))];
    } catch (/** @type {any} */ error) {
      return { name: error.name, status: error.status, offset: error.offset };
    }
  });
}

if (isMainThread) {
  const request = JSON.parse(readFileSync(0, "utf-8"));
  const file = readFileSync(request.file);
  const { TokenizerKernel } = await load(request.worker);
  const name = request.shared ? "tokenizer.shared.wasm" : "tokenizer.wasm";
  const module = await WebAssembly.compile(readFileSync(`${request.worker}/wasm/${name}`));
  if (!request.shared) {
    const kernel = await TokenizerKernel.load(module, file);
    console.log(JSON.stringify(answers(kernel, request.texts)));
  } else {
    // One memory: the file once, and an area of 64 MiB for each thread.
    const area = 64 << 20;
    const initial = (area / 65536) * (request.shared + 1);
    const memory = new WebAssembly.Memory({ initial, maximum: 32768, shared: true });
    new Uint8Array(memory.buffer).set(file, 64);
    const threads = Array.from({ length: request.shared }, (_, n) => {
      const work = { start: (n + 1) * area, end: (n + 2) * area };
      const place = { module, memory, file: { start: 64, end: 64 + file.length }, work };
      return new Worker(new URL(import.meta.url), { workerData: { ...place, request } });
    });
    const done = threads.map((thread) => {
      return new Promise((resolve, reject) => thread.on("message", resolve).on("error", reject));
    });
    console.log(JSON.stringify(await Promise.all(done)));
  }
} else {
  const { module, memory, file, work, request } = workerData;
  const { TokenizerKernel } = await load(request.worker);
  const kernel = await TokenizerKernel.attach(module, memory, file, work);
  for (let i = 0; i < 20; i++) answers(kernel, request.texts);
  parentPort?.postMessage(answers(kernel, request.texts));
}
