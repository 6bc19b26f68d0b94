// rope_kv.wgsl with a norm first: q, k = RMSNorm of each head, then rotated; q, k, v quantised, k and v cached
//
// qkv: f32[n_tokens, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM]; rope: (cos, sin)[MAX_SEQ, HEAD_DIM / 2]
// qq: i8[n_tokens, N_HEADS, HEAD_DIM]; qs: f32[n_tokens, N_HEADS, HEAD_DIM / 32]
// weight: f32[2, HEAD_DIM], q's then k's
// kvq: i8[2, MAX_SEQ, N_KV_HEADS, HEAD_DIM], k then v; kvs: f32[2, MAX_SEQ, N_KV_HEADS, HEAD_DIM / 32]
// Element i of a head's first half and element i of its second are a pair: (a, b) -> (a cos - b sin, b cos + a sin).
// A head's norm keeps the order of rmsnorm_quantize.wgsl over HEAD_DIM columns: 32 lanes, a binary tree.
// One invocation: one group of 32 of one token. Grid: (groups in a row of qkv / 64, n_tokens).

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> qkv: array<f32>;
@group(0) @binding(2) var<storage, read> rope: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> qq: array<u32>;
@group(0) @binding(4) var<storage, read_write> qs: array<f32>;
@group(0) @binding(5) var<storage, read_write> kvq: array<u32>;
@group(0) @binding(6) var<storage, read_write> kvs: array<f32>;
@group(0) @binding(7) var<storage, read> weight: array<f32>;

override N_HEADS: u32;
override N_KV_HEADS: u32;
override HEAD_DIM: u32;
override MAX_SEQ: u32;
override INV_HEAD_DIM: f32;
override EPS: f32;

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

// exactmath.rsqrt
fn rsqrt(x: f32) -> f32 {
  let half = sep(0.5 * x);
  var y = bitcast<f32>(0x5f3759dfu - (bitcast<u32>(x) >> 1u));
  for (var i = 0; i < 4; i++) {
    y = sep(y * sep(1.5 - sep(sep(half * y) * y)));
  }
  return y;
}

// exactmath.quantize of one group: its scale and the reciprocal that its values are multiplied by.
fn group_scale(amax: u32) -> vec2<f32> {
  let scale = sep(bitcast<f32>(select(amax, 0u, amax < 0x2b800000u)) * 0.007874016);
  return vec2<f32>(scale, recip(scale));
}

// Four values as packed i8: round to even after scaling.
fn pack4(v: vec4<f32>, inverse: f32) -> vec4<i32> {
  return vec4<i32>(
    i32(round(sep(v.x * inverse))),
    i32(round(sep(v.y * inverse))),
    i32(round(sep(v.z * inverse))),
    i32(round(sep(v.w * inverse))),
  );
}

fn word_of(q: vec4<i32>) -> u32 {
  let b = vec4<u32>(q) & vec4<u32>(255u);
  return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn magnitude4(v: vec4<f32>) -> u32 {
  let b = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
  return max(max(b.x, b.y), max(b.z, b.w));
}

// 1 / sqrt(mean square + EPS) of the head whose row of qkv begins at `base`.
fn head_factor(base: u32) -> f32 {
  var tree = array<f32, 32>();
  for (var lane = 0u; lane < 32u; lane++) {
    var acc = nothing();
    for (var c = lane; c < HEAD_DIM; c += 32u) {
      let v = qkv[base + c];
      if ((bitcast<u32>(v) & 0x7fffffffu) >= 0x20000000u) {
        acc = sep(acc + sep(v * v));
      }
    }
    tree[lane] = acc;
  }
  for (var width = 16u; width > 0u; width /= 2u) {
    for (var i = 0u; i < width; i++) {
      tree[i] = sep(tree[i] + tree[i + width]);
    }
  }
  return rsqrt(sep(sep(tree[0] * INV_HEAD_DIM) + EPS));
}

// Element d of a head of q or k: its weights begin at `first`.
fn head_value(base: u32, first: u32, d: u32, factor: f32) -> f32 {
  return sep(sep(qkv[base + d] * factor) * weight[first + d]);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let head_groups = HEAD_DIM / 32u;
  let unit = id.x / head_groups;
  if (unit >= N_HEADS + 2u * N_KV_HEADS) {
    return;
  }
  let group = id.x % head_groups;
  let t = id.y;
  let pos = step.pos + t;
  let half = HEAD_DIM / 2u;
  let base = (t * (N_HEADS + 2u * N_KV_HEADS) + unit) * HEAD_DIM;
  let turned = unit < N_HEADS + N_KV_HEADS;
  let first = select(HEAD_DIM, 0u, unit < N_HEADS);
  var factor = 0.0;
  if (turned) {
    factor = head_factor(base);
  }

  var value = array<f32, 32>();
  var amax = 0u;
  for (var i = 0u; i < 32u; i++) {
    let d = 32u * group + i;
    var v = qkv[base + d];
    if (turned) {
      v = head_value(base, first, d, factor);
      let turn = rope[pos * half + d % half];
      if (d < half) {
        v = sep(sep(v * turn.x) - sep(head_value(base, first, d + half, factor) * turn.y));
      } else {
        v = sep(sep(v * turn.x) + sep(head_value(base, first, d - half, factor) * turn.y));
      }
    }
    value[i] = v;
    amax = max(amax, bitcast<u32>(v) & 0x7fffffffu);
  }

  let scale = group_scale(amax);
  let cached = unit - N_HEADS;
  let row = ((cached / N_KV_HEADS) * MAX_SEQ + pos) * N_KV_HEADS + cached % N_KV_HEADS;
  let place = select(row, t * N_HEADS + unit, unit < N_HEADS) * head_groups + group;
  for (var i = 0u; i < 8u; i++) {
    let word = word_of(pack4(vec4<f32>(value[4u * i], value[4u * i + 1u], value[4u * i + 2u], value[4u * i + 3u]), scale.y));
    if (unit < N_HEADS) {
      qq[8u * place + i] = word;
    } else {
      kvq[8u * place + i] = word;
    }
  }
  if (unit < N_HEADS) {
    qs[place] = scale.x;
  } else {
    kvs[place] = scale.x;
  }
}
