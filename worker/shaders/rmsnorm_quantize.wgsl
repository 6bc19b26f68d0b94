// xq, xm = x[t, :] * rsqrt(mean(x[t, :]^2) + EPS) * weight as int8 groups of 32:
// scale = amax / 127, q = round(x / scale)
//
// x: f32[n_tokens, COLS]; weight: f32[COLS]; xq: i8[n_tokens, COLS]; xm: (scale, scale * sum q)[n_tokens, COLS/32].
// One workgroup of 256: one token. 32 invocations hold the lanes of the sum; then each takes four columns at a time,
// eight neighbours a group. Grid: (1, n_tokens).
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

const WIDTH = 256u;
const LANES = 32u;
var<workgroup> lanes: array<f32, LANES>;
var<workgroup> peaks: array<u32, WIDTH>;
var<workgroup> sums: array<i32, WIDTH>;

// The largest magnitude in the group of 32 that eight neighbouring invocations hold, four values each.
fn group_peak(index: u32) -> u32 {
  let first = index & ~7u;
  var peak = peaks[first];
  for (var i = 1u; i < 8u; i++) {
    peak = max(peak, peaks[first + i]);
  }
  return peak;
}

// The sum of that group's quantised values.
fn group_sum(index: u32) -> i32 {
  let first = index & ~7u;
  var sum = sums[first];
  for (var i = 1u; i < 8u; i++) {
    sum += sums[first + i];
  }
  return sum;
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let base = group.y * COLS;
  if (index < LANES) {
    var acc = nothing();
    for (var c = index; c < COLS; c += LANES) {
      let v = x[base + c];
      if ((bitcast<u32>(v) & 0x7fffffffu) >= 0x20000000u) {
        acc = sep(acc + sep(v * v));
      }
    }
    lanes[index] = acc;
  }
  workgroupBarrier();
  for (var width = LANES / 2u; width > 0u; width /= 2u) {
    if (index < width) {
      lanes[index] = sep(lanes[index] + lanes[index + width]);
    }
    workgroupBarrier();
  }
  let factor = rsqrt(sep(sep(lanes[0] * INV_COLS) + EPS));
  for (var first = 0u; first < COLS / 4u; first += WIDTH) {
    let word = first + index;
    let col = 4u * word;
    var v = vec4<f32>();
    if (col < COLS) {
      v = vec4<f32>(
        sep(sep(x[base + col] * factor) * weight[col]),
        sep(sep(x[base + col + 1u] * factor) * weight[col + 1u]),
        sep(sep(x[base + col + 2u] * factor) * weight[col + 2u]),
        sep(sep(x[base + col + 3u] * factor) * weight[col + 3u]),
      );
    }
    peaks[index] = magnitude4(v);
    workgroupBarrier();
    let scale = group_scale(group_peak(index));
    let q = pack4(v, scale.y);
    sums[index] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    if (col < COLS) {
      let at = base / 4u + word;
      xq[at] = word_of(q);
      if (at % 8u == 0u) {
        xm[at / 8u] = vec2<f32>(scale.x, sep(scale.x * f32(group_sum(index))));
      }
    }
  }
}
