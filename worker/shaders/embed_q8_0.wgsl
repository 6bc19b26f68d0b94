// x[t, col] = d * q, the embedding's row ids[t]
//
// ids: u32[n_tokens]; quants, scales: the q8_0 planes of the rows ROW0 .. ROW0 + ROWS (manifest.py); x: f32[n_tokens, COLS].
// One invocation: 4 columns of one token. Grid: (COLS / 4 / 64, n_tokens). Ids of other parts are left alone.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> ids: array<u32>;
@group(0) @binding(2) var<storage, read> quants: array<u32>;
@group(0) @binding(3) var<storage, read> scales: array<u32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

override COLS: u32;
override ROW0: u32;
override ROWS: u32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
}

// The f16 in the low 16 bits, by integers: devices differ on unpack2x16float's subnormals and NaNs.
fn half_to_f32(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let magnitude = h & 0x7fffu;
  let normal = ((magnitude << 13u) + 0x38000000u) | sign;
  let tiny = bitcast<u32>(sep(f32(magnitude) * 5.9604644775390625e-8)) | sign;
  return bitcast<f32>(select(normal, tiny, magnitude < 0x400u));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = ids[id.y] - ROW0;
  if (id.x >= COLS / 4u || row >= ROWS) {
    return;
  }
  let block = row * (COLS / 32u) + id.x / 8u;
  let place = id.y * COLS + 4u * id.x;
  let word = quants[row * (COLS / 4u) + id.x];
  let d = half_to_f32((scales[block >> 1u] >> (16u * (block & 1u))) & 0xffffu);
  for (var i = 0u; i < 4u; i++) {
    let q = extractBits(bitcast<i32>(word), 8u * i, 8u);
    x[place + i] = sep(d * f32(q));
  }
}
