// scores[t, h, j] = exp(scores[t, h, j] - max); norm[t, h] = 1 / sum of them, j <= pos + t
//
// scores: f32[n_tokens, N_HEADS, MAX_SEQ], in place; norm: f32[n_tokens, N_HEADS].
// One workgroup of 64: one head of one token. Grid: (N_HEADS, n_tokens).
// Order: positions in blocks of 64; a block's terms in ascending order from +0, the blocks in ascending order
// from +0. The maximum is exact in any order.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> scores: array<f32>;
@group(0) @binding(2) var<storage, read_write> norm: array<f32>;

override N_HEADS: u32;
override MAX_SEQ: u32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
}

// +0 that no compiler knows: adding a literal 0.0 may be left out, which turns +0 + -0 into -0.
fn nothing() -> f32 {
  return bitcast<f32>(step.zero);
}

// exactmath.recip
fn recip(x: f32) -> f32 {
  let bits = bitcast<u32>(x);
  let magnitude = bits & 0x7fffffffu;
  let ax = bitcast<f32>(magnitude);
  var y = bitcast<f32>(0x7ef311c3u - magnitude);
  for (var i = 0; i < 4; i++) {
    y = sep(y * sep(2.0 - sep(ax * y)));
  }
  let sign = bits & 0x80000000u;
  return bitcast<f32>(select(bitcast<u32>(y) | sign, sign, magnitude == 0u));
}

// exactmath.exp
fn exp_exact(argument: f32) -> f32 {
  let x = min(max(argument, -44.0), 44.0);
  let n = floor(sep(sep(x * 1.44269504) + 0.5));
  var r = sep(x - sep(n * 0.693359375));
  r = sep(r - sep(n * -2.12194440e-4));
  var p = 1.9875691500e-4;
  p = sep(sep(p * r) + 1.3981999507e-3);
  p = sep(sep(p * r) + 8.3334519073e-3);
  p = sep(sep(p * r) + 4.1665795894e-2);
  p = sep(sep(p * r) + 1.6666665459e-1);
  p = sep(sep(p * r) + 5.0000001201e-1);
  let y = sep(sep(sep(p * sep(r * r)) + r) + 1.0);
  return sep(y * bitcast<f32>(u32(i32(n) + 127) << 23u));
}

const BLOCK = 64u;
const LANES = 64u;
var<workgroup> peaks: array<f32, LANES>;
var<workgroup> sums: array<f32, (MAX_SEQ + BLOCK - 1u) / BLOCK>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let row = group.y * N_HEADS + group.x;
  let base = row * MAX_SEQ;
  let seen = step.pos + group.y + 1u;
  let blocks = (seen + BLOCK - 1u) / BLOCK;

  var peak = -3.4028234663852886e38;
  for (var j = lane; j < seen; j += LANES) {
    peak = max(peak, scores[base + j]);
  }
  peaks[lane] = peak;
  workgroupBarrier();
  for (var i = 0u; i < LANES; i++) {
    peak = max(peak, peaks[i]);
  }

  for (var b = lane; b < blocks; b += LANES) {
    var acc = nothing();
    for (var j = b * BLOCK; j < min(b * BLOCK + BLOCK, seen); j++) {
      let e = exp_exact(sep(scores[base + j] - peak));
      scores[base + j] = e;
      acc = sep(acc + e);
    }
    sums[b] = acc;
  }
  workgroupBarrier();
  if (lane == 0u) {
    var total = nothing();
    for (var b = 0u; b < blocks; b++) {
      total = sep(total + sums[b]);
    }
    norm[row] = recip(total);
  }
}
