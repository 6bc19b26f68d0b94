// The stage `sampling` in plain JavaScript, written from the kit's SPEC.md alone: reads sampling.jsonl on stdin,
// writes results on stdout.

import { createInterface } from "node:readline";

const f = Math.fround;
const buffer = new DataView(new ArrayBuffer(8));
const hexDouble = (high, low) => (buffer.setUint32(0, high), buffer.setUint32(4, low), buffer.getFloat64(0));
const LOG2_E = hexDouble(0x3ff71547, 0x652b82fe);
const LN2_HI = hexDouble(0x3fe62e42, 0xfee00000);
const LN2_LO = hexDouble(0x3dea39ef, 0x35793c76);
const ROUNDER = 1.5 * 2 ** 52;
const inverseFactorial = Array.from({ length: 14 }, (_, n) => 1 / Array.from({ length: n }, (_, i) => i + 1).reduce((a, b) => a * b, 1));

function exp(x) {
  if (x < -708) return 0;
  const k = x * LOG2_E + ROUNDER - ROUNDER;
  const r = x - k * LN2_HI - k * LN2_LO;
  let p = r * inverseFactorial[13];
  for (let n = 12; n >= 2; n--) p = (p + inverseFactorial[n]) * r;
  p = p * r;
  p = p + r;
  p = p + 1;
  return p * 2 ** k;
}

function log(x) {
  buffer.setFloat64(0, x);
  const S = 0x3fe6a09e667f3bcdn;
  const B = buffer.getBigInt64(0) + (0x3ff0000000000000n - S);
  const k = Number(B >> 52n) - 1023;
  buffer.setBigInt64(0, (B & ((1n << 52n) - 1n)) + S);
  const g = buffer.getFloat64(0) - 1;
  const s = g / (g + 2);
  const z = s * s;
  let R = z * (1 / 23);
  for (let n = 21; n >= 3; n -= 2) R = (R + 1 / n) * z;
  return k * LN2_HI + (g - (s * (g - 2 * R) - k * LN2_LO));
}

/** An integer as float32, rounded once. */
function toFloat32(n) {
  let shift = 0n;
  const length = n.toString(2).length;
  if (length <= 24) return Number(n);
  shift = BigInt(length - 24);
  let top = n >> shift;
  const rest = n & ((1n << shift) - 1n);
  const half = 1n << (shift - 1n);
  if (rest > half || (rest === half && top & 1n)) top += 1n;
  return Number(top) * 2 ** Number(shift);
}

function softmax(values) {
  const max = values.reduce((a, b) => (b > a ? b : a));
  const e = values.map((v) => exp(f(v - max)));
  const sum = e.reduce((a, b) => a + b, 0);
  return e.map((x) => f(x / sum));
}

/** Multiples of 2^-62. */
function weights(probs) {
  return probs.map((p) => {
    const scaled = p * 2 ** 62;
    return BigInt(scaled < 2 ** 52 ? scaled + 2 ** 52 - 2 ** 52 : scaled);
  });
}

const byValue = (values, sign) => values.map((_, i) => i).sort((a, b) => sign * (values[a] - values[b]) || a - b);

const steps = {
  temperature: (c, p) => ({ ids: c.ids, values: c.values.map((v) => f(v / p.temperature)) }),
  topKWithTies: keep((values, p) => {
    const k = p.top_k;
    if (!(k > 0 && k < values.length)) return null;
    const kth = [...values].sort((a, b) => b - a)[k - 1];
    return values.map((v) => v >= kth);
  }),
  topKExact: keep((values, p) => {
    const k = p.top_k;
    if (!(k > 0 && k < values.length)) return null;
    const best = new Set(byValue(values, -1).slice(0, k));
    return values.map((_, i) => best.has(i));
  }),
  topP: keep((values, p) => {
    if (p.top_p >= 1) return null;
    const w = weights(softmax(values));
    const limit = f(1 - p.top_p) * 2 ** 62;
    const order = byValue(values, 1);
    const kept = values.map(() => false);
    let sum = 0n;
    for (const i of order) if (toFloat32((sum += w[i])) > limit) kept[i] = true;
    kept[order.at(-1)] = true;
    return kept;
  }),
  nucleus: keep((values, p) => {
    if (p.top_p >= 1) return null;
    const w = weights(softmax(values));
    const kept = values.map(() => false);
    let sum = 0n;
    for (const i of byValue(values, -1)) {
      kept[i] = true;
      if (toFloat32((sum += w[i])) >= p.top_p * 2 ** 62) break;
    }
    return kept;
  }),
  minP: keep((values, p) => {
    if (p.min_p <= 0) return null;
    const probs = softmax(values);
    const least = f(p.min_p * probs.reduce((a, b) => Math.max(a, b)));
    return probs.map((x) => x >= least);
  }),
  nearLargest: keep((values, p) => {
    if (p.min_p <= 0) return null;
    const least = f(values.reduce((a, b) => Math.max(a, b)) + f(log(p.min_p)));
    return values.map((v) => v >= least);
  }),
};
const PROFILES = {
  transformers: [steps.temperature, steps.topKWithTies, steps.topP, steps.minP],
  "llama.cpp": [steps.topKExact, steps.nucleus, steps.nearLargest, steps.temperature],
};

function keep(mask) {
  return ({ ids, values }, params) => {
    const kept = mask(values, params);
    if (kept === null) return { ids, values };
    return { ids: ids.filter((_, i) => kept[i]), values: values.filter((_, i) => kept[i]) };
  };
}

function philox(counter, key) {
  let [c0, c1, c2, c3] = counter;
  let [k0, k1] = key;
  const mask = 0xffffffffn;
  for (let round = 0; round < 10; round++) {
    const a = 0xd2511f53n * c0;
    const b = 0xcd9e8d57n * c2;
    [c0, c1, c2, c3] = [(b >> 32n) ^ c1 ^ k0, b & mask, (a >> 32n) ^ c3 ^ k1, a & mask];
    k0 = (k0 + 0x9e3779b9n) & mask;
    k1 = (k1 + 0xbb67ae85n) & mask;
  }
  return [c0, c1, c2, c3];
}

const floats = (hex) => Array.from({ length: hex.length / 8 }, (_, i) => Buffer.from(hex.slice(8 * i, 8 * i + 8), "hex").readFloatLE(0));
const digits = (values) => Buffer.from(new Float32Array(values).buffer).toString("hex");
const isFinite32 = (v) => Number.isFinite(v) && Number.isFinite(f(v));

function sample(input) {
  const params = Object.fromEntries(
    Object.entries(input.params).map(([name, value]) => {
      const isFloat = name.endsWith("penalty") || ["temperature", "top_p", "min_p"].includes(name);
      return [name, isFloat ? floats(value)[0] : value];
    }),
  );
  const logits = floats(input.logits);
  if (!logits.every(Number.isFinite)) return { error: "device.bad_logits" };
  let values = logits.slice(0, input.n_tokens);
  const r = params.repetition_penalty;
  if (r !== 1) {
    for (const id of new Set([...input.prompt_ids, ...input.generated_ids])) {
      if (id < values.length) values[id] = values[id] < 0 ? f(values[id] * r) : f(values[id] / r);
    }
  }
  if (params.presence_penalty || params.frequency_penalty) {
    for (const id of new Set(input.generated_ids)) {
      const count = input.generated_ids.filter((other) => other === id).length;
      if (id >= values.length) continue;
      values[id] = f(f(values[id] - f(count * params.frequency_penalty)) - params.presence_penalty);
    }
  }
  let ids = values.map((_, id) => id);
  if (input.allowed) ids = ids.filter((id) => input.allowed.includes(id));
  ids = ids.filter((id) => !params.banned_ids.includes(id));
  if (ids.length === 0) return { error: "input.params" };
  let candidates = { ids, values: ids.map((id) => values[id]) };
  const largest = () => candidates.values.reduce((a, b) => (b > a ? b : a));
  if (!isFinite32(largest())) return { error: "device.bad_logits" };
  if (params.temperature === 0) {
    const id = candidates.ids[candidates.values.indexOf(largest())];
    return { id, kept_ids: [id], probs: digits([1]) };
  }
  for (const step of PROFILES[params.profile]) candidates = step(candidates, params);
  if (!isFinite32(largest())) return { error: "device.bad_logits" };
  const probs = softmax(candidates.values);
  const w = weights(probs);
  const [seed, position] = [BigInt(params.seed), BigInt(input.position)];
  const mask = 0xffffffffn;
  const words = philox([position & mask, position >> 32n, 0n, 0n], [seed & mask, seed >> 32n]);
  const u = ((words[1] << 32n) | words[0]) >> 11n;
  const target = (u * w.reduce((a, b) => a + b, 0n)) >> 53n;
  let running = 0n;
  const at = w.findIndex((each) => (running += each) > target);
  return { id: candidates.ids[at], kept_ids: candidates.ids, probs: digits(probs) };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, input } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify({ id, output: sample(input) })}\n`);
}
