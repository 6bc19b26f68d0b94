// rope_kv.wgsl with a norm first: q, k = RMSNorm of each head, then rotated; q, k, v quantised, k and v cached
//
// qkv: f32[n_tokens, N_HEADS + 2 * N_KV_HEADS, HEAD_DIM]; rope: (cos, sin)[MAX_SEQ, HEAD_DIM / 2]
// qq: i8[n_tokens, N_HEADS, HEAD_DIM]; qs: f32[n_tokens, N_HEADS, HEAD_DIM / 32]
// weight: f32[2, HEAD_DIM], q's then k's
// kvq: i8[2, N_KV_HEADS, MAX_SEQ, HEAD_DIM], k then v; kvs: f32[2, N_KV_HEADS, MAX_SEQ, HEAD_DIM / 32]
// Element i of a head's first half and element i of its second are a pair: (a, b) -> (a cos - b sin, b cos + a sin).
// A head's norm keeps the order of rmsnorm_quantize.wgsl over HEAD_DIM columns: 32 lanes, a binary tree.
// One workgroup of 32: one head of one token, an invocation 4 elements at a time, eight neighbours a group.
// Grid: (N_HEADS + 2 * N_KV_HEADS, n_tokens).

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

const WIDTH = 32u;
var<workgroup> lanes: array<f32, WIDTH>;
var<workgroup> peaks: array<u32, WIDTH>;

// The largest magnitude in the group of 32 that eight neighbouring invocations hold, four values each.
fn group_peak(index: u32) -> u32 {
  let first = index & ~7u;
  var peak = peaks[first];
  for (var i = 1u; i < 8u; i++) {
    peak = max(peak, peaks[first + i]);
  }
  return peak;
}

// Four elements of a head rotated: `partner` holds those half a head away, `at` is where their turns begin.
fn turned(v: vec4<f32>, partner: vec4<f32>, at: u32, first_half: bool) -> vec4<f32> {
  let a = rope[at];
  let b = rope[at + 1u];
  let c = rope[at + 2u];
  let d = rope[at + 3u];
  let straight = sep4(v * vec4<f32>(a.x, b.x, c.x, d.x));
  let crossed = sep4(partner * vec4<f32>(a.y, b.y, c.y, d.y));
  return select(sep4(straight + crossed), sep4(straight - crossed), first_half);
}

// Word `word` of the head whose row of qkv begins at `base`; a `normed` one under the weights from `first` on.
fn head_word(base: u32, word: u32, normed: bool, first: u32, factor: f32) -> vec4<f32> {
  let d = 4u * word;
  let v = vec4<f32>(qkv[base + d], qkv[base + d + 1u], qkv[base + d + 2u], qkv[base + d + 3u]);
  let at = first + d;
  let w = vec4<f32>(weight[at], weight[at + 1u], weight[at + 2u], weight[at + 3u]);
  return select(v, sep4(sep4(v * factor) * w), normed);
}

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let unit = group.x;
  let t = group.y;
  let pos = step.pos + t;
  let words = HEAD_DIM / 4u;
  let half = HEAD_DIM / 2u;
  let base = (t * (N_HEADS + 2u * N_KV_HEADS) + unit) * HEAD_DIM;
  let cached = unit - N_HEADS;
  let place = cached * MAX_SEQ + pos;
  let row = select(place, t * N_HEADS + unit, unit < N_HEADS);
  let normed = unit < N_HEADS + N_KV_HEADS;
  let first_weight = select(HEAD_DIM, 0u, unit < N_HEADS);
  var acc = nothing();
  for (var d = index; d < HEAD_DIM; d += WIDTH) {
    let v = qkv[base + d];
    if ((bitcast<u32>(v) & 0x7fffffffu) >= 0x20000000u) {
      acc = sep(acc + sep(v * v));
    }
  }
  lanes[index] = acc;
  workgroupBarrier();
  for (var width = WIDTH / 2u; width > 0u; width /= 2u) {
    if (index < width) {
      lanes[index] = sep(lanes[index] + lanes[index + width]);
    }
    workgroupBarrier();
  }
  let factor = rsqrt(sep(sep(lanes[0] * INV_HEAD_DIM) + EPS));
  for (var first = 0u; first < words; first += WIDTH) {
    let word = first + index;
    var v = vec4<f32>();
    if (word < words) {
      v = head_word(base, word, normed, first_weight, factor);
      if (unit < N_HEADS + N_KV_HEADS) {
        let first_half = 4u * word < half;
        let other = select(word - half / 4u, word + half / 4u, first_half);
        let partner = head_word(base, other, normed, first_weight, factor);
        v = turned(v, partner, pos * half + (4u * word) % half, first_half);
      }
    }
    peaks[index] = magnitude4(v);
    workgroupBarrier();
    let scale = group_scale(group_peak(index));
    workgroupBarrier();
    if (word < words) {
      let q = word_of(pack4(v, scale.y));
      let at = row * words + word;
      if (unit < N_HEADS) {
        qq[at] = q;
      } else {
        kvq[at] = q;
      }
      if (word % 8u == 0u) {
        if (unit < N_HEADS) {
          qs[at / 8u] = scale.x;
        } else {
          kvs[at / 8u] = scale.x;
        }
      }
    }
  }
}
