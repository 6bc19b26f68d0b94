// xq, xm = silu(gate[t, :]) * up[t, :] as int8 groups of 32: scale = amax / 127, q = round(x / scale)
//
// gate_up: f32[n_tokens, 2 * COLS], gate then up
// xq: i8[n_tokens, COLS]; xm: (scale, scale * sum q)[n_tokens, COLS/32].
// One invocation: 4 columns of one token, eight neighbours a group. Grid: (COLS / 4 / 64, n_tokens).

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> gate_up: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> xq: array<u32>;
@group(0) @binding(3) var<storage, read_write> xm: array<vec2<f32>>;

override COLS: u32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
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

// exactmath.silu
fn silu(x: f32) -> f32 {
  return sep(x * recip(sep(1.0 + exp_exact(-x))));
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

const WIDTH = 64u;
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

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let words = COLS / 4u;
  var v = vec4<f32>();
  if (id.x < words) {
    let g = gate_up[id.y * 2u * words + id.x];
    let u = gate_up[id.y * 2u * words + words + id.x];
    v = vec4<f32>(sep(silu(g.x) * u.x), sep(silu(g.y) * u.y), sep(silu(g.z) * u.z), sep(silu(g.w) * u.w));
  }
  peaks[index] = magnitude4(v);
  workgroupBarrier();
  let scale = group_scale(group_peak(index));
  let q = pack4(v, scale.y);
  sums[index] = q.x + q.y + q.z + q.w;
  workgroupBarrier();
  if (id.x < words) {
    let at = id.y * words + id.x;
    xq[at] = word_of(q);
    if (at % 8u == 0u) {
      xm[at / 8u] = vec2<f32>(scale.x, sep(scale.x * f32(group_sum(index))));
    }
  }
}
