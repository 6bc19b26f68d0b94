// y[t, OFFSET + row] (+)= sum over groups g of f32(dot) * (d * d_x)
//
// xq: i8[n_tokens, COLS] in groups of 32; xm: (d_x, d_x * sum q_x)[n_tokens, COLS/32]
// quants: i8[ROWS, COLS]; scales: f16 d[ROWS, COLS/32]. A weight is d * q.
// y: f32[n_tokens, STRIDE]. ADD = 1 adds to what y holds. LAST is 0: one token is matmul_q8_0.wgsl's.
// One workgroup of 64: 16 rows of 4 tokens. An invocation holds one of the contract's lanes of 2 rows, 8 apart, of 4
// tokens: 6 blocks read make 8 dot products. Grid: (n_tokens / 4, ROWS / 16), the tokens first, so that workgroups
// which run at the same time share rows in the cache.
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

fn sep2(v: vec2<f32>) -> vec2<f32> {
  return bitcast<vec2<f32>>(bitcast<vec2<u32>>(v) | vec2<u32>(step.zero));
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

// The same group of a token with the blocks of two rows.
fn terms_scaled(w0: Block, w1: Block, x: Block) -> vec2<f32> {
  return vec2<f32>(term_scaled(w0, x), term_scaled(w1, x));
}

const LANES = 8u;
const TILE_ROWS = 16u;
const TILE_TOKENS = 4u;
var<workgroup> lanes: array<f32, LANES * TILE_TOKENS * TILE_ROWS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
  let groups = COLS / 32u;
  let lane = (index / 4u) % LANES;
  let slot = index % 4u + index / 32u * 4u;
  // Past the last row or token, the last one once more, and not stored.
  let row = vec2<u32>(group.y * TILE_ROWS + slot) + vec2<u32>(0u, 8u);
  let w = min(row, vec2<u32>(ROWS - 1u)) * groups;
  let token = vec4<u32>(group.x * TILE_TOKENS) + vec4<u32>(0u, 1u, 2u, 3u);
  let x = min(token, vec4<u32>(step.n_tokens - 1u)) * groups;
  var acc0 = vec2<f32>(nothing());
  var acc1 = acc0;
  var acc2 = acc0;
  var acc3 = acc0;
  // A number of turns that is fixed with the pipeline, so that compilers unroll them and reads overlap.
  for (var start = 0u; start < groups; start += LANES) {
    let g = start + lane;
    if (groups % LANES == 0u || g < groups) {
      let w0 = weights_q8_0(w.x + g);
      let w1 = weights_q8_0(w.y + g);
      acc0 = sep2(acc0 + terms_scaled(w0, w1, activations(x.x + g)));
      acc1 = sep2(acc1 + terms_scaled(w0, w1, activations(x.y + g)));
      acc2 = sep2(acc2 + terms_scaled(w0, w1, activations(x.z + g)));
      acc3 = sep2(acc3 + terms_scaled(w0, w1, activations(x.w + g)));
    }
  }
  // lanes[lane][token][row]: what one invocation adds up below lies beside its neighbours'.
  let place = lane * TILE_TOKENS * TILE_ROWS + slot;
  lanes[place] = acc0.x;
  lanes[place + 8u] = acc0.y;
  lanes[place + 16u] = acc1.x;
  lanes[place + 24u] = acc1.y;
  lanes[place + 32u] = acc2.x;
  lanes[place + 40u] = acc2.y;
  lanes[place + 48u] = acc3.x;
  lanes[place + 56u] = acc3.y;
  workgroupBarrier();
  let to_row = group.y * TILE_ROWS + index % TILE_ROWS;
  let to_token = group.x * TILE_TOKENS + index / TILE_ROWS;
  if (to_row < ROWS && to_token < step.n_tokens) {
    var total = nothing();
    for (var i = 0u; i < LANES; i++) {
      total = sep(total + lanes[i * TILE_TOKENS * TILE_ROWS + index]);
    }
    let to = to_token * STRIDE + OFFSET + to_row;
    if (ADD == 1u) {
      total = sep(y[to] + total);
    }
    y[to] = total;
  }
}
