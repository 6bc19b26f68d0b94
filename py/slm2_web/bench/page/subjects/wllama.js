// wllama (llama.cpp compiled to wasm) on the model's GGUF file.

const at = (/** @type {string} */ path) => new URL(path, import.meta.url).href;
/** @type {any} */
let model;

/** @param {{threads: number, context: number}} options */
export async function load({ threads, context }) {
  const { Wllama } = await import(at("../wllama/index.min.js"));
  const quiet = { debug() {}, log() {}, warn() {}, error: console.error };
  model = new Wllama({ default: at("../wllama/wllama.wasm") }, { logger: quiet });
  const options = { n_threads: threads, n_gpu_layers: 0, n_ctx: context, n_batch: 512, seed: 1 };
  await model.loadModelFromUrl(at("../model.gguf"), options);
  return { adapter: `${model.getNumThreads()} threads`, multithread: model.isMultithread() };
}

/** @param {{text: string, n_tokens: number}} request */
export async function sample({ text, n_tokens: nTokens }) {
  const start = performance.now();
  const stream = await model.createCompletion({
    prompt: text,
    max_tokens: nTokens,
    temperature: 0,
    top_k: 1,
    seed: 1,
    cache_prompt: false,
    stream: true,
  });
  const times = [];
  let timings;
  for await (const chunk of stream) {
    if (chunk.choices?.[0]?.text) times.push(performance.now());
    if (chunk.timings) timings = chunk.timings;
  }
  return {
    prompt_tokens: timings.prompt_n + (timings.cache_n ?? 0),
    cached_tokens: timings.cache_n ?? 0,
    ttft_ms: times[0] - start,
    decode_ms: times[times.length - 1] - times[0],
    decode_tokens: times.length - 1,
    own: timings,
  };
}

export async function unload() {
  await model.exit();
}
