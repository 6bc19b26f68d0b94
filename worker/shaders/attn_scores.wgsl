// scores[t, h, j] = SCALE * sum over groups g of f32(dot(q[t, h, g], k[j, h / share, g])) * (s_q * s_k), j <= pos + t
//
// qq: i8[n_tokens, N_HEADS, HEAD_DIM]; qs: f32[n_tokens, N_HEADS, HEAD_DIM / 32]; kvq, kvs: the cache (rope_kv.wgsl)
// scores: f32[n_tokens, N_HEADS, MAX_SEQ].
// One invocation: one score. Grid: (seq_len / 64, N_HEADS, n_tokens).
// Order: a head's groups in ascending order from +0, then times SCALE.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> qq: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> qs: array<f32>;
@group(0) @binding(3) var<storage, read> kvq: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> kvs: array<f32>;
@group(0) @binding(5) var<storage, read_write> scores: array<f32>;

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

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let j = id.x;
  let h = id.y;
  let t = id.z;
  if (j > step.pos + t) {
    return;
  }
  let groups = HEAD_DIM / 32u;
  let q = (t * N_HEADS + h) * groups;
  let k = (j * N_KV_HEADS + h * N_KV_HEADS / N_HEADS) * groups;
  var total = nothing();
  for (var g = 0u; g < groups; g++) {
    let dot = dot4(qq[2u * (q + g)], kvq[2u * (k + g)]) + dot4(qq[2u * (q + g) + 1u], kvq[2u * (k + g) + 1u]);
    total = sep(total + sep(f32(dot) * sep(qs[q + g] * kvs[k + g])));
  }
  scores[(t * N_HEADS + h) * MAX_SEQ + j] = sep(total * SCALE);
}
