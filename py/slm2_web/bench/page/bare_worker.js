// One thread of bare.js: its rows of every matrix, of made-up weights, in a memory of its own.
//
// {matrices, thread, threads} makes them, {passes} reads them so many times; each is answered with {ms}.

const PAGE_BYTES = 65536;
const BYTES = [16, 16, 32]; // a block's quants, by kind: q4_0, q4_1, q8_0
const SCALES = [1, 2, 1];
const STACK_BYTES = 4096;

/** @type {(() => void)[]} */
let products = [];

/** @param {{matrices: [number, number, number][], thread: number, threads: number}} request */
async function make({ matrices, thread, threads }) {
  const response = await fetch(new URL("./bare.wasm", import.meta.url));
  const module = await WebAssembly.compile(await response.arrayBuffer());
  const memory = new WebAssembly.Memory({ initial: 1 });
  const { exports } = await WebAssembly.instantiate(module, { env: { memory } });
  /** @type {Record<string, any>} */
  const kernel = exports;
  let end = STACK_BYTES;
  kernel.__stack_pointer.value = end;
  const room = (/** @type {number} */ bytes) => {
    const address = Math.ceil(end / 64) * 64;
    end = address + bytes;
    const missing = Math.ceil(end / PAGE_BYTES) - memory.buffer.byteLength / PAGE_BYTES;
    if (missing > 0) memory.grow(missing);
    return address;
  };
  const mine = (/** @type {number} */ rows) => Math.ceil(rows / 4 / threads) * 4;
  const cols = Math.max(...matrices.map((matrix) => matrix[2]));
  const x = room(2 * cols), xd = room(cols / 8), xs = room(cols / 8);
  const y = room(4 * Math.max(...matrices.map((matrix) => mine(matrix[1]))));
  for (let i = 0; i < cols; i++) new Int16Array(memory.buffer, x, cols)[i] = ((i * 7919) % 255) - 127;
  new Float32Array(memory.buffer, xd, cols / 32).fill(0.001);
  new Float32Array(memory.buffer, xs, cols / 32).fill(0.1);
  let seed = 12345 + thread;
  const random = () => (seed = (Math.imul(seed, 1664525) + 1013904223) | 0);
  products = matrices.map(([kind, rows, width]) => {
    const blocks = (mine(rows) * width) / 32;
    const quants = room(blocks * BYTES[kind]), scales = room(blocks * SCALES[kind] * 2);
    const words = new Int32Array(memory.buffer, quants, (blocks * BYTES[kind]) / 4);
    for (let i = 0; i < words.length; i++) words[i] = random() ^ (seed >>> 13);
    new Uint16Array(memory.buffer, scales, blocks * SCALES[kind]).fill(0x1c00);
    return () => kernel.product(kind, quants, scales, x, xd, xs, y, mine(rows), width / 32);
  });
}

self.onmessage = async ({ data }) => {
  try {
    const start = performance.now();
    if (data.matrices) await make(data);
    else for (let i = 0; i < data.passes; i++) for (const product of products) product();
    self.postMessage({ ms: performance.now() - start });
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};
