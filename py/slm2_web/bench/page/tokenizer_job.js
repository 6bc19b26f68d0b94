// One job of the tokenizer's bench, in a worker of its own: load a tokenizer, encode one text cold and warm.
//
// Request: {subject, text, passes, seconds}; text: its file. All files are in memory before a clock starts.
// Answer: {load_ms, first_ms, warm_ms, n_ids, sha256} or {error}; sha256 is of the ids as little-endian u32.
//
// load_ms   files in memory -> ids of a first short text; what a browser compiles is compiled in it
// first_ms  string -> ids of the text, for the first time
// warm_ms   the same again, a list; at least `passes` times unless that would take longer than `seconds`
//
// Everyone is given a string and gives a list or an array of ids: that is what a page has and wants.

/** From a string to ids. @typedef {(text: string) => ArrayLike<number>} Encode */
/** Fetches what it needs, then gives what is to be timed: loading. @typedef {() => Promise<() => Promise<Encode>>} Subject */

const at = (/** @type {string} */ path) => new URL(path, import.meta.url);

/** @param {string} path */
async function bytes(path) {
  const response = await fetch(at(path));
  if (!response.ok) throw new Error(`${path}: HTTP status ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

/** @type {Record<string, Subject>} */
const SUBJECTS = {
  async kernel() {
    const { TokenizerKernel } = await import(at("worker/wasm/tokenizer.js").href);
    const [code, file] = await Promise.all([bytes("worker/wasm/tokenizer.wasm"), bytes("tokenizer.slm2tok")]);
    return async () => {
      const kernel = await TokenizerKernel.load(await WebAssembly.compile(code), file);
      const encoder = new TextEncoder();
      return (text) => {
        const data = encoder.encode(text);
        return kernel.encode(data, Uint32Array.of(0, data.length, 0));
      };
    };
  },

  async huggingface() {
    const { Tokenizer } = await import(at("huggingface/tokenizers.min.mjs").href);
    const file = await bytes("tokenizer.json");
    return async () => {
      const tokenizer = new Tokenizer(JSON.parse(new TextDecoder().decode(file)), {});
      return (text) => tokenizer.encode(text, { add_special_tokens: false }).ids;
    };
  },

  async tiktoken() {
    const glue = await import(at("tiktoken/tiktoken_bg.js").href);
    const [code, file] = await Promise.all([bytes("tiktoken/tiktoken_bg.wasm"), bytes("tiktoken.json")]);
    return async () => {
      const { instance } = await WebAssembly.instantiate(code, { "./tiktoken_bg.js": glue });
      glue.__wbg_set_wasm(instance.exports);
      const { ranks, pattern } = JSON.parse(new TextDecoder().decode(file));
      const encoding = new glue.Tiktoken(ranks, {}, pattern);
      return (text) => encoding.encode_ordinary(text);
    };
  },
};

/** @param {{subject: string, text: string, passes: number, seconds: number}} request */
async function run({ subject, text: path, passes, seconds }) {
  const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(await bytes(path));
  const load = await SUBJECTS[subject]();
  const beforeLoad = performance.now();
  const encode = await load();
  encode("Hello, world!");
  const load_ms = performance.now() - beforeLoad;

  const beforeFirst = performance.now();
  const ids = encode(text);
  const first_ms = performance.now() - beforeFirst;

  const warm_ms = [];
  const beforeWarm = performance.now();
  for (let i = 0; i < passes && performance.now() - beforeWarm < seconds * 1000; i++) {
    const before = performance.now();
    encode(text);
    warm_ms.push(performance.now() - before);
  }
  const digest = await crypto.subtle.digest("SHA-256", Uint32Array.from(ids));
  const sha256 = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  return { load_ms, first_ms, warm_ms, n_ids: ids.length, sha256 };
}

self.onmessage = async ({ data }) => {
  try {
    self.postMessage(await run(data));
  } catch (error) {
    self.postMessage({ error: String(error) });
  }
};
