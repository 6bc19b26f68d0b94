// y[t, h, d] = norm[t, h] * sum over j <= pos + t of (scores[t, h, j] * s_v[j]) * q_v[j, h / share, d]
//
// scores: f32[n_tokens, N_HEADS, MAX_SEQ]; norm: f32[n_tokens, N_HEADS]; kvq, kvs: the cache (rope_kv.wgsl)
// y: f32[n_tokens, N_HEADS, HEAD_DIM].
// One invocation: 4 elements of one head of one token. Grid: (N_HEADS * HEAD_DIM / 4 / 64, n_tokens).
// Order: positions in blocks of 64; a block's terms in ascending order from +0, the blocks in ascending order
// from +0, then times norm.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> scores: array<f32>;
@group(0) @binding(2) var<storage, read> norm: array<f32>;
@group(0) @binding(3) var<storage, read> kvq: array<u32>;
@group(0) @binding(4) var<storage, read> kvs: array<f32>;
@group(0) @binding(5) var<storage, read_write> y: array<vec4<f32>>;

override N_HEADS: u32;
override N_KV_HEADS: u32;
override HEAD_DIM: u32;
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

const BLOCK = 64u;

fn sep4(v: vec4<f32>) -> vec4<f32> {
  return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) | vec4<u32>(step.zero));
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let words = HEAD_DIM / 4u;
  let h = id.x / words;
  if (h >= N_HEADS) {
    return;
  }
  let word = id.x % words;
  let t = id.y;
  let kv_head = h * N_KV_HEADS / N_HEADS;
  let base = (t * N_HEADS + h) * MAX_SEQ;
  let seen = step.pos + t + 1u;
  var total = vec4<f32>(nothing());
  for (var start = 0u; start < seen; start += BLOCK) {
    var acc = vec4<f32>(nothing());
    for (var j = start; j < min(start + BLOCK, seen); j++) {
      let row = (MAX_SEQ + j) * N_KV_HEADS + kv_head;
      let q = bitcast<i32>(kvq[row * words + word]);
      let weight = sep(scores[base + j] * kvs[row * (HEAD_DIM / 32u) + word / 8u]);
      let v = vec4<f32>(vec4<i32>(extractBits(q, 0u, 8u), extractBits(q, 8u, 8u), extractBits(q, 16u, 8u), extractBits(q, 24u, 8u)));
      acc = sep4(acc + sep4(weight * v));
    }
    total = sep4(total + acc);
  }
  y[(t * N_HEADS + h) * words + word] = sep4(total * norm[t * N_HEADS + h]);
}
