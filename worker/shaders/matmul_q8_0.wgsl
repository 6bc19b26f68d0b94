// y[t, OFFSET + row] (+)= sum over groups g of f32(dot) * (d * d_x)
//
// xq: i8[n_tokens, COLS] in groups of 32; xm: (d_x, d_x * sum q_x)[n_tokens, COLS/32]
// quants: i8[ROWS, COLS]; scales: f16 d[ROWS, COLS/32]. A weight is d * q.
// y: f32[n_tokens, STRIDE]. ADD = 1 adds to what y holds. LAST = 1 takes the last token only, as row 0.
// One invocation: one row, TOKENS tokens (at most 4). Workgroup: 64 rows. Grid: (ROWS / 64, n_tokens / TOKENS).
// Order: group g belongs to lane g mod 8; a lane adds its groups in ascending order from +0; the lanes are
// added in ascending order from +0.

struct Step { zero: u32, n_tokens: u32, pos: u32, seq_len: u32 }
@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> xq: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> xm: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read> quants: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> scales: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<f32>;

override COLS: u32;
override ROWS: u32;
override STRIDE: u32;
override OFFSET: u32;
override TOKENS: u32;
override ADD: u32;
override LAST: u32;

// Isolates one float operation: no compiler can prove that zero is 0, so none can fuse across it. Not by xor:
// compilers do cancel a second xor with the same word.
fn sep(v: f32) -> f32 {
  return bitcast<f32>(bitcast<u32>(v) | step.zero);
}

// +0 that no compiler knows: adding a literal 0.0 may be left out, which turns +0 + -0 into -0.
fn nothing() -> f32 {
  return bitcast<f32>(step.zero);
}

// The f16 in the low 16 bits, by integers: devices differ on unpack2x16float's subnormals and NaNs.
fn half_to_f32(h: u32) -> f32 {
  let sign = (h & 0x8000u) << 16u;
  let magnitude = h & 0x7fffu;
  let normal = ((magnitude << 13u) + 0x38000000u) | sign;
  let tiny = bitcast<u32>(sep(f32(magnitude) * 5.9604644775390625e-8)) | sign;
  return bitcast<f32>(select(normal, tiny, magnitude < 0x400u));
}

const LANES = 8u;

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = id.x;
  if (row >= ROWS) {
    return;
  }
  let groups = COLS / 32u;
  let first = select(id.y * TOKENS, step.n_tokens - 1u, LAST == 1u);
  var total = array<f32, 4>(nothing(), nothing(), nothing(), nothing());
  for (var lane = 0u; lane < LANES; lane++) {
    var acc = array<f32, 4>(nothing(), nothing(), nothing(), nothing());
    for (var g = lane; g < groups; g += LANES) {
      let block = row * groups + g;
      let w0 = quants[2u * block];
      let w1 = quants[2u * block + 1u];
      let d = half_to_f32((scales[block >> 1u] >> (16u * (block & 1u))) & 0xffffu);
      for (var t = 0u; t < TOKENS; t++) {
        if (first + t < step.n_tokens) {
          let at = (first + t) * groups + g;
          let x_meta = xm[at];
          let dot = dot4(w0, xq[2u * at]) + dot4(w1, xq[2u * at + 1u]);
          acc[t] = sep(acc[t] + sep(f32(dot) * sep(d * x_meta.x)));
        }
      }
    }
    for (var t = 0u; t < TOKENS; t++) {
      total[t] = sep(total[t] + acc[t]);
    }
  }
  for (var t = 0u; t < TOKENS; t++) {
    if (first + t < step.n_tokens) {
      let place = select(first + t, 0u, LAST == 1u) * STRIDE + OFFSET + row;
      if (ADD == 1u) {
        y[place] = sep(y[place] + total[t]);
      } else {
        y[place] = total[t];
      }
    }
  }
}
