// For each block b of positions: masses[t, h, b] = sum of p[j], values[t, h, b, :] = sum of
// (p[j] * s_v[j]) * q_v[j, h / share, :],
// where p[j] = exp(scores[t, h, j] - the largest of peaks[t, h, :]), j <= pos + t
//
// scores: f32[n_tokens, N_HEADS, MAX_SEQ]; peaks: f32[n_tokens, N_HEADS, blocks of MAX_SEQ]
// kvq, kvs: the cache (rope_kv.wgsl)
// masses: f32[n_tokens, N_HEADS, blocks of MAX_SEQ]; values: f32[n_tokens, N_HEADS, blocks of MAX_SEQ, HEAD_DIM].
// One workgroup of 32: a block of 64 positions of one head of one token; an invocation takes two exps, then 4
// elements of the head at a time, so that neighbours read a position's values side by side.
// Grid: (seq_len / 64, N_HEADS, n_tokens).
// Order: a block's terms in ascending order from +0. attn_quantize.wgsl adds the blocks.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> peaks: array<f32>;
@group(0) @binding(3) var<storage, read> kvq: array<u32>;
@group(0) @binding(4) var<storage, read> kvs: array<f32>;
@group(0) @binding(5) var<storage, read_write> masses: array<f32>;
@group(0) @binding(6) var<storage, read_write> values: array<vec4<f32>>;

override N_HEADS: u32;
override N_KV_HEADS: u32;
override HEAD_DIM: u32;
override MAX_SEQ: u32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
}

fn sep4(v: vec4<f32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) | vec4<u32>(step.zero));
}

// +0 that no compiler knows: adding a literal 0.0 may be left out, which turns +0 + -0 into -0.
fn nothing() -> f32 {
  return bitcast<f32>(step.zero);
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

const WIDTH = 32u;
const BLOCK = 64u;
const LOWEST = -3.4028234663852886e38;
var<workgroup> tops: array<f32, WIDTH>;
var<workgroup> exps: array<f32, BLOCK>;
var<workgroup> weights: array<f32, BLOCK * (HEAD_DIM / 32u)>;

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let seen = step.pos + group.z + 1u;
  let start = group.x * BLOCK;
  if (start >= seen) {
    return;
  }
  let row = group.z * N_HEADS + group.y;
  let blocks = row * ((MAX_SEQ + BLOCK - 1u) / BLOCK);
  var peak = LOWEST;
  for (var b = index; b * BLOCK < seen; b += WIDTH) {
    peak = max(peak, peaks[blocks + b]);
  }
  tops[index] = peak;
  workgroupBarrier();
  for (var i = 0u; i < WIDTH; i++) {
    peak = max(peak, tops[i]);
  }

  let groups = HEAD_DIM / 32u;
  let count = min(BLOCK, seen - start);
  let first = (N_KV_HEADS + group.y * N_KV_HEADS / N_HEADS) * MAX_SEQ + start;
  for (var j = index; j < count; j += WIDTH) {
    let e = exp_exact(sep(scores[row * MAX_SEQ + start + j] - peak));
    exps[j] = e;
    for (var g = 0u; g < groups; g++) {
      weights[j * groups + g] = sep(e * kvs[(first + j) * groups + g]);
    }
  }
  workgroupBarrier();

  let words = HEAD_DIM / 4u;
  for (var word = index; word < words; word += WIDTH) {
    var mass = nothing();
    var acc = vec4<f32>(nothing());
    for (var j = 0u; j < count; j++) {
      let q = bitcast<i32>(kvq[(first + j) * words + word]);
      let low = vec2<i32>(extractBits(q, 0u, 8u), extractBits(q, 8u, 8u));
      let high = vec2<i32>(extractBits(q, 16u, 8u), extractBits(q, 24u, 8u));
      acc = sep4(acc + sep4(weights[j * groups + word / 8u] * vec4<f32>(vec4<i32>(low, high))));
      mass = sep(mass + exps[j]);
    }
    values[(blocks + group.x) * words + word] = acc;
    if (word == 0u) {
      masses[blocks + group.x] = mass;
    }
  }
}
