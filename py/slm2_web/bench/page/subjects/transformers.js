// transformers.js (ONNX Runtime compiled to wasm) on the ONNX file that bench/onnx.py makes.

const at = (/** @type {string} */ path) => new URL(path, import.meta.url).href;
/** @type {any} */
let library;
/** @type {any} */
let model;

/** @param {{threads: number}} options */
export async function load({ threads }) {
  library = await import(at("../transformers/transformers.web.min.js"));
  const { env, AutoModelForCausalLM } = library;
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: at("../") });
  env.backends.onnx.wasm.numThreads = threads;
  env.backends.onnx.wasm.wasmPaths = at("../onnxruntime-web/");
  model = await AutoModelForCausalLM.from_pretrained("onnx-model", { device: "wasm", dtype: "q8" });
  return { adapter: `${env.backends.onnx.wasm.numThreads} threads` };
}

/** @param {{ids: number[], n_tokens: number}} request */
export async function sample({ ids, n_tokens: nTokens }) {
  const { Tensor, BaseStreamer } = library;
  /** @type {number[]} */
  const times = [];
  class Clock extends BaseStreamer {
    put() {
      times.push(performance.now());
    }
    end() {}
  }
  const shape = [1, ids.length];
  const start = performance.now();
  await model.generate({
    input_ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), shape),
    attention_mask: new Tensor("int64", new BigInt64Array(ids.length).fill(1n), shape),
    max_new_tokens: nTokens,
    do_sample: false,
    streamer: new Clock(),
  });
  // The streamer is given the prompt first, then each new token.
  return {
    prompt_tokens: ids.length,
    cached_tokens: 0,
    ttft_ms: times[1] - start,
    decode_ms: times[times.length - 1] - times[1],
    decode_tokens: times.length - 2,
  };
}

export async function unload() {
  await model.dispose();
}
