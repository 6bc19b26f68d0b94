// xq, xm = (sum over blocks b of values[t, h, b, :]) * (1 / sum over b of masses[t, h, b]) as int8 groups of 32:
// scale = amax / 127, q = round(x / scale)
//
// masses: f32[n_tokens, N_HEADS, blocks of MAX_SEQ]; values: f32[n_tokens, N_HEADS, blocks of MAX_SEQ, HEAD_DIM]
// xq: i8[n_tokens, N_HEADS, HEAD_DIM]; xm: (scale, scale * sum q)[n_tokens, N_HEADS, HEAD_DIM / 32].
// One workgroup of 32: one head of one token, an invocation 4 elements at a time, eight neighbours a group.
// Grid: (N_HEADS, n_tokens).
// Order: the blocks in ascending order from +0.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> masses: array<f32>;
@group(0) @binding(2) var<storage, read> values: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> xq: array<u32>;
@group(0) @binding(4) var<storage, read_write> xm: array<vec2<f32>>;

override N_HEADS: u32;
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

const WIDTH = 32u;
const BLOCK = 64u;
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

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let row = group.y * N_HEADS + group.x;
  let blocks = row * ((MAX_SEQ + BLOCK - 1u) / BLOCK);
  let count = (step.pos + group.y) / BLOCK + 1u;
  let words = HEAD_DIM / 4u;
  for (var first = 0u; first < words; first += WIDTH) {
    let word = first + index;
    var v = vec4<f32>();
    if (word < words) {
      var mass = nothing();
      var total = vec4<f32>(nothing());
      for (var b = blocks; b < blocks + count; b++) {
        mass = sep(mass + masses[b]);
        total = sep4(total + values[b * words + word]);
      }
      v = sep4(total * recip(mass));
    }
    peaks[index] = magnitude4(v);
    workgroupBarrier();
    let scale = group_scale(group_peak(index));
    let q = pack4(v, scale.y);
    sums[index] = q.x + q.y + q.z + q.w;
    workgroupBarrier();
    if (word < words) {
      let at = row * words + word;
      xq[at] = word_of(q);
      if (at % 8u == 0u) {
        xm[at / 8u] = vec2<f32>(scale.x, sep(scale.x * f32(group_sum(index))));
      }
    }
  }
}
