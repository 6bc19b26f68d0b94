// y[t, OFFSET + row] (+)= sum over groups g of f32(dot) * (d * d_x)
//
// xq: i8[n_tokens, COLS] in groups of 32; xm: (d_x, d_x * sum q_x)[n_tokens, COLS/32]
// quants: i8[ROWS, COLS]; scales: f16 d[ROWS, COLS/32]. A weight is d * q.
// y: f32[n_tokens, STRIDE]. ADD = 1 adds to what y holds. LAST = 1 takes the last token only, as row 0.
// One workgroup of 64: 8 rows of one token, 8 invocations to a row, one for each of the contract's lanes: they read
// neighbouring blocks, 256 bytes of a row at a time. 32 neighbouring invocations are 4 rows by 8 lanes, 4
// neighbours are rows. Grid: (ROWS / 8, n_tokens).
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

fn dot4(a: vec4<u32>, b: vec4<u32>) -> i32 {
  return dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w);
}

// A group of 32: its bytes, its scale, and what an offset is multiplied by or is.
struct Block { low: vec4<u32>, high: vec4<u32>, scale: f32, offset: f32 }

// Block `at` of the weights.
fn weights_q8_0(at: u32) -> Block {
  let d = half_to_f32((scales[at >> 1u] >> (16u * (at & 1u))) & 0xffffu);
  return Block(quants[2u * at], quants[2u * at + 1u], d, 0.0);
}

// Group `at` of the activations.
fn activations(at: u32) -> Block {
  return Block(xq[2u * at], xq[2u * at + 1u], xm[at].x, xm[at].y);
}

// A group's share of a row's sum.
fn term_scaled(w: Block, x: Block) -> f32 {
  let dot = dot4(w.low, x.low) + dot4(w.high, x.high);
  return sep(f32(dot) * sep(w.scale * x.scale));
}

const LANES = 8u;
const TILE_ROWS = 8u;
var<workgroup> lanes: array<f32, LANES * TILE_ROWS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let groups = COLS / 32u;
  let token = select(group.y, step.n_tokens - 1u, LAST == 1u);
  let lane = (index / 4u) % LANES;
  let slot = index % 4u + index / 32u * 4u;
  // Past the last row, the last one once more, and not stored.
  let first = min(group.x * TILE_ROWS + slot, ROWS - 1u) * groups;
  var acc = nothing();
  // A number of turns that is fixed with the pipeline, so that compilers unroll them and reads overlap.
  for (var start = 0u; start < groups; start += LANES) {
    let g = start + lane;
    if (groups % LANES == 0u || g < groups) {
      acc = sep(acc + term_scaled(weights_q8_0(first + g), activations(token * groups + g)));
    }
  }
  lanes[lane * TILE_ROWS + slot] = acc;
  workgroupBarrier();
  let row = group.x * TILE_ROWS + index;
  if (index < TILE_ROWS && row < ROWS) {
    var total = nothing();
    for (var i = 0u; i < LANES; i++) {
      total = sep(total + lanes[i * TILE_ROWS + index]);
    }
    let place = select(token, 0u, LAST == 1u) * STRIDE + OFFSET + row;
    if (ADD == 1u) {
      total = sep(y[place] + total);
    }
    y[place] = total;
  }
}
