// scores[t, h, j] = SCALE * sum over groups g of f32(dot(q[t, h, g], k[j, h / share, g])) * (s_q * s_k), j <= pos + t
// peaks[t, h, b] = the largest of the scores of block b, 64 positions
//
// qq: i8[n_tokens, N_HEADS, HEAD_DIM]; qs: f32[n_tokens, N_HEADS, HEAD_DIM / 32]; kvq, kvs: the cache (rope_kv.wgsl)
// scores: f32[n_tokens, N_HEADS, MAX_SEQ]; peaks: f32[n_tokens, N_HEADS, blocks of MAX_SEQ].
// One workgroup of 64: a block of positions of one head of one token. Grid: (seq_len / 64, N_HEADS, n_tokens).
// Order: a head's groups in ascending order from +0, then times SCALE. The largest is exact in any order.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> qq: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> qs: array<f32>;
@group(0) @binding(3) var<storage, read> kvq: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> kvs: array<f32>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;
@group(0) @binding(6) var<storage, read_write> peaks: array<f32>;

override N_HEADS: u32;
override N_KV_HEADS: u32;
override HEAD_DIM: u32;
override MAX_SEQ: u32;
override SCALE: f32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
}

// +0 that no compiler knows: adding a literal 0.0 may be left out, which turns +0 + -0 into -0.
fn nothing() -> f32 {
  return bitcast<f32>(step.zero);
}

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

const BLOCK = 64u;
const LOWEST = -3.4028234663852886e38;
var<workgroup> all: array<f32, BLOCK>;
var<workgroup> eighths: array<f32, 8>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let j = group.x * BLOCK + index;
  let row = group.z * N_HEADS + group.y;
  let seen = step.pos + group.z + 1u;
  if (group.x * BLOCK >= seen) {
    return;
  }
  let groups = HEAD_DIM / 32u;
  var score = LOWEST;
  if (j < seen) {
    let q = row * groups;
    let k = (group.y * N_KV_HEADS / N_HEADS * MAX_SEQ + j) * groups;
    var total = nothing();
    for (var g = 0u; g < groups; g++) {
      let dot = dot4(qq[2u * (q + g)], kvq[2u * (k + g)]) + dot4(qq[2u * (q + g) + 1u], kvq[2u * (k + g) + 1u]);
      total = sep(total + sep(f32(dot) * sep(qs[q + g] * kvs[k + g])));
    }
    score = sep(total * SCALE);
    scores[row * MAX_SEQ + j] = score;
  }
  all[index] = score;
  workgroupBarrier();
  if (index < 8u) {
    for (var i = 0u; i < 8u; i++) {
      score = max(score, all[8u * i + index]);
    }
    eighths[index] = score;
  }
  workgroupBarrier();
  if (index == 0u) {
    for (var i = 1u; i < 8u; i++) {
      score = max(score, eighths[i]);
    }
    peaks[row * ((MAX_SEQ + BLOCK - 1u) / BLOCK) + group.x] = score;
  }
}
