// xq, xm = x[t, :] * rsqrt(mean(x[t, :]^2) + EPS) * weight as int8 groups of 32, as in quantize.wgsl
//
// x: f32[n_tokens, COLS]; weight: f32[COLS]; xq: i8[n_tokens, COLS]; xm: (scale, scale * sum q)[n_tokens, COLS/32].
// One workgroup of 32: one token. Grid: (1, n_tokens).
// Order: column c belongs to lane c mod 32; a lane adds its squares in ascending order from +0; the lanes are
// added as a binary tree 16, 8, 4, 2, 1; times INV_COLS. Squares of |x| < 2^-63 count as 0.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> xq: array<u32>;
@group(0) @binding(4) var<storage, read_write> xm: array<vec2<f32>>;

override COLS: u32;
override INV_COLS: f32;
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

const LANES = 32u;
var<workgroup> lanes: array<f32, LANES>;

fn normed(base: u32, col: u32, factor: f32) -> vec4<f32> {
  return vec4<f32>(
    sep(sep(x[base + col] * factor) * weight[col]),
    sep(sep(x[base + col + 1u] * factor) * weight[col + 1u]),
    sep(sep(x[base + col + 2u] * factor) * weight[col + 2u]),
    sep(sep(x[base + col + 3u] * factor) * weight[col + 3u]),
  );
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
  let base = group.y * COLS;
  var acc = nothing();
  for (var c = lane; c < COLS; c += LANES) {
    let v = x[base + c];
    if ((bitcast<u32>(v) & 0x7fffffffu) >= 0x20000000u) {
      acc = sep(acc + sep(v * v));
    }
  }
  lanes[lane] = acc;
  workgroupBarrier();
  // Every invocation adds the same tree for itself: one barrier instead of six.
  var tree = lanes;
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    for (var i = 0u; i < width; i++) {
      tree[i] = sep(tree[i] + tree[i + width]);
    }
  }
  let factor = rsqrt(sep(sep(tree[0] * INV_COLS) + EPS));
  for (var g = lane; g < COLS / 32u; g += LANES) {
    let at = group.y * (COLS / 32u) + g;
    var amax = 0u;
    for (var i = 0u; i < 8u; i++) {
      amax = max(amax, magnitude4(normed(base, 32u * g + 4u * i, factor)));
    }
    let scale = group_scale(amax);
    var sum = 0;
    for (var i = 0u; i < 8u; i++) {
      let q = pack4(normed(base, 32u * g + 4u * i, factor), scale.y);
      sum += q.x + q.y + q.z + q.w;
      xq[8u * at + i] = word_of(q);
    }
    xm[at] = vec2<f32>(scale.x, sep(scale.x * f32(sum)));
  }
}
