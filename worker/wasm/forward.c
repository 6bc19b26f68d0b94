// Forward2 on wasm SIMD: the plan's kernels, with the reference's bits (docs/forward.md, forward2/reference.py).
//
// Theory of operation. Python writes a plan into memory as an array of operations (forward2/wasm.py): a kernel's
// number, its constants, the addresses of its buffers. A pass is one call of `forward_run` in every thread, with
// the same arguments. All threads walk the operations in step: the work of one is cut into parts that the threads
// claim one after the other, and none begins the next operation before all have ended this one. A part's outputs
// depend on its inputs alone, so neither the number of threads nor who claims what can show in a bit.
//
// Bits. Without fast-math, C's float operations are the reference's: one correctly rounded operation each, in the
// order written; wasm has no fused multiply-add outside relaxed SIMD, which is not used (its results differ by
// machine). Integer sums are exact in any order. A vector's four lanes are four of the contract's lanes.
//
// Memory is imported. Nothing here allocates, and no global changes: `scratch` gives each thread room of its own.

#include <stdint.h>
#include <wasm_simd128.h>

typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef float f32;
typedef v128_t v128;

#define EXPORT(name) __attribute__((export_name(#name))) name

// --- the program, as forward2/wasm.py writes it ---------------------------------------------------------------

enum {
  EMBED_Q4_0, EMBED_Q4_1, EMBED_Q8_0, RMSNORM_QUANTIZE, SILU_MUL_QUANTIZE,
  MATMUL_Q4_0, MATMUL_Q4_1, MATMUL_Q8_0, ROPE_KV, ATTN_SCORES, ATTN_VALUES, ATTN_QUANTIZE,
  BIAS_ROPE_KV, NORM_ROPE_KV,
};

// `constants` in the order of the kernel table (kernels.py), floats by their bits; `buffers` in binding order.
typedef struct {
  u32 kernel;
  u32 constants[8];
  u32 buffers[7];
} Op;

typedef struct {
  u32 zero, n_tokens, pos, seq_len;
} Step;

// Two words for each operation, zeroed before a pass: the next part to claim, and the threads that are done.
typedef struct {
  u32 next, done;
} Turn;

// --- arithmetic: exactmath.py, four at a time -----------------------------------------------------------------

static inline f32 bits_f32(u32 b) {
  union { u32 u; f32 f; } v = {b};
  return v.f;
}

static inline u32 f32_bits(f32 f) {
  union { f32 f; u32 u; } v = {f};
  return v.u;
}

static inline v128 f4(f32 x) { return wasm_f32x4_splat(x); }
static inline v128 u4(u32 x) { return wasm_i32x4_splat((i32)x); }
static inline v128 add(v128 a, v128 b) { return wasm_f32x4_add(a, b); }
static inline v128 sub(v128 a, v128 b) { return wasm_f32x4_sub(a, b); }
static inline v128 mul(v128 a, v128 b) { return wasm_f32x4_mul(a, b); }
static inline v128 load(const void *p) { return wasm_v128_load(p); }
static inline v128 pick(v128 yes, v128 no, v128 mask) { return wasm_v128_bitselect(yes, no, mask); }

static inline v128 recip(v128 x) {
  v128 magnitude = wasm_v128_and(x, u4(0x7fffffff)), sign = wasm_v128_and(x, u4(0x80000000));
  v128 y = wasm_i32x4_sub(u4(0x7ef311c3), magnitude);
  for (int i = 0; i < 4; i++) y = mul(y, sub(f4(2.0f), mul(magnitude, y)));
  return pick(sign, wasm_v128_or(y, sign), wasm_i32x4_eq(magnitude, u4(0)));
}

static inline f32 rsqrt(f32 x) {
  f32 half = 0.5f * x, y = bits_f32(0x5f3759df - (f32_bits(x) >> 1));
  for (int i = 0; i < 4; i++) y = y * (1.5f - (half * y) * y);
  return y;
}

static inline v128 exp4(v128 x) {
  x = wasm_f32x4_min(wasm_f32x4_max(x, f4(-44.0f)), f4(44.0f));
  v128 n = wasm_f32x4_floor(add(mul(x, f4(1.44269504f)), f4(0.5f)));
  v128 r = sub(x, mul(n, f4(0.693359375f)));
  r = sub(r, mul(n, f4(-2.12194440e-4f)));
  v128 p = f4(1.9875691500e-4f);
  p = add(mul(p, r), f4(1.3981999507e-3f));
  p = add(mul(p, r), f4(8.3334519073e-3f));
  p = add(mul(p, r), f4(4.1665795894e-2f));
  p = add(mul(p, r), f4(1.6666665459e-1f));
  p = add(mul(p, r), f4(5.0000001201e-1f));
  v128 y = add(add(mul(p, mul(r, r)), r), f4(1.0f));
  return mul(y, wasm_i32x4_shl(wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), u4(127)), 23));
}

static inline v128 silu(v128 x) { return mul(x, recip(add(f4(1.0f), exp4(wasm_f32x4_neg(x))))); }

// Four f16, each in the low half of a 32-bit lane.
static inline v128 half4(v128 h) {
  v128 magnitude = wasm_v128_and(h, u4(0x7fff));
  v128 sign = wasm_i32x4_shl(wasm_v128_and(h, u4(0x8000)), 16);
  v128 normal = wasm_i32x4_add(wasm_i32x4_shl(magnitude, 13), u4(0x38000000));
  v128 tiny = mul(wasm_f32x4_convert_i32x4(magnitude), f4(5.9604644775390625e-8f));
  return wasm_v128_or(pick(tiny, normal, wasm_i32x4_lt(magnitude, u4(0x400))), sign);
}

static inline f32 half(u16 h) { return wasm_f32x4_extract_lane(half4(wasm_i32x4_splat(h)), 0); }

// --- quantisation of one group of 32 --------------------------------------------------------------------------

// From 8 vectors of values to 32 i8 and (scale, scale * sum).
static inline void quantize_group(const v128 *value, i8 *q, f32 *scale_out, f32 *sum_out) {
  v128 amax4 = u4(0);
  for (int i = 0; i < 8; i++) amax4 = wasm_u32x4_max(amax4, wasm_v128_and(value[i], u4(0x7fffffff)));
  amax4 = wasm_u32x4_max(amax4, wasm_i32x4_shuffle(amax4, amax4, 2, 3, 0, 1));
  amax4 = wasm_u32x4_max(amax4, wasm_i32x4_shuffle(amax4, amax4, 1, 0, 3, 2));
  amax4 = wasm_v128_and(amax4, wasm_u32x4_ge(amax4, u4(0x2b800000)));
  v128 scale = mul(amax4, f4(0.007874016f)), inverse = recip(scale), sum = u4(0);
  v128 word[8];
  for (int i = 0; i < 8; i++) {
    word[i] = wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(mul(value[i], inverse)));
    sum = wasm_i32x4_add(sum, word[i]);
  }
  for (int i = 0; i < 2; i++) {
    v128 low = wasm_i16x8_narrow_i32x4(word[4 * i], word[4 * i + 1]);
    v128 high = wasm_i16x8_narrow_i32x4(word[4 * i + 2], word[4 * i + 3]);
    wasm_v128_store(q + 16 * i, wasm_i8x16_narrow_i16x8(low, high));
  }
  i32 total = wasm_i32x4_extract_lane(sum, 0) + wasm_i32x4_extract_lane(sum, 1) + wasm_i32x4_extract_lane(sum, 2) +
              wasm_i32x4_extract_lane(sum, 3);
  *scale_out = wasm_f32x4_extract_lane(scale, 0);
  if (sum_out) *sum_out = *scale_out * (f32)total;
}

// --- embed ----------------------------------------------------------------------------------------------------

static void embed(u32 kernel, const u32 *c, const u32 *b, u32 t) {
  const u32 cols = c[0], row = ((const u32 *)b[0])[t] - c[1], groups = cols / 32;
  if (row >= c[2]) return;
  f32 *x = (f32 *)b[3] + t * cols;
  for (u32 g = 0; g < groups; g++) {
    const u32 block = row * groups + g;
    const u16 *scales = (const u16 *)b[2];
    for (u32 i = 0; i < 32; i++) {
      if (kernel == EMBED_Q8_0) {
        x[32 * g + i] = half(scales[block]) * (f32)((const i8 *)b[1])[32 * block + i];
      } else {
        const u32 q = ((const u8 *)b[1])[16 * block + i % 16] >> (4 * (i / 16)) & 15;
        if (kernel == EMBED_Q4_0) x[32 * g + i] = half(scales[block]) * (f32)((i32)q - 8);
        else x[32 * g + i] = half(scales[2 * block]) * (f32)q + half(scales[2 * block + 1]);
      }
    }
  }
}

// --- norm and quantise ----------------------------------------------------------------------------------------

// 1 / sqrt(mean square + eps) of `cols` values, a multiple of 32.
static inline f32 norm_factor(const f32 *x, u32 cols, f32 inv_cols, f32 eps) {
  v128 lane[8];
  for (int i = 0; i < 8; i++) lane[i] = f4(0.0f);
  for (u32 col = 0; col < cols; col += 32) {
    for (int i = 0; i < 8; i++) {
      v128 v = load(x + col + 4 * i);
      v128 kept = wasm_u32x4_ge(wasm_v128_and(v, u4(0x7fffffff)), u4(0x20000000));
      v = wasm_v128_and(v, kept);
      lane[i] = add(lane[i], mul(v, v));
    }
  }
  for (int i = 0; i < 4; i++) lane[i] = add(lane[i], lane[i + 4]);
  for (int i = 0; i < 2; i++) lane[i] = add(lane[i], lane[i + 2]);
  v128 four = add(lane[0], lane[1]);
  four = add(four, wasm_i32x4_shuffle(four, four, 2, 3, 0, 1));
  const f32 total = wasm_f32x4_extract_lane(four, 0) + wasm_f32x4_extract_lane(four, 1);
  return rsqrt(total * inv_cols + eps);
}

static void rmsnorm_quantize(const u32 *c, const u32 *b, u32 t) {
  const u32 cols = c[0];
  const f32 *x = (const f32 *)b[0] + t * cols, *weight = (const f32 *)b[1];
  const v128 factor = f4(norm_factor(x, cols, bits_f32(c[1]), bits_f32(c[2])));
  for (u32 g = 0; g < cols / 32; g++) {
    v128 value[8];
    for (int i = 0; i < 8; i++) {
      value[i] = mul(mul(load(x + 32 * g + 4 * i), factor), load(weight + 32 * g + 4 * i));
    }
    const u32 at = t * (cols / 32) + g;
    f32 *xm = (f32 *)b[3] + 2 * at;
    quantize_group(value, (i8 *)b[2] + 32 * at, xm, xm + 1);
  }
}

static void silu_mul_quantize(const u32 *c, const u32 *b, u32 t) {
  const u32 cols = c[0];
  const f32 *gate = (const f32 *)b[0] + t * 2 * cols, *up = gate + cols;
  for (u32 g = 0; g < cols / 32; g++) {
    v128 value[8];
    for (int i = 0; i < 8; i++) value[i] = mul(silu(load(gate + 32 * g + 4 * i)), load(up + 32 * g + 4 * i));
    const u32 at = t * (cols / 32) + g;
    f32 *xm = (f32 *)b[2] + 2 * at;
    quantize_group(value, (i8 *)b[1] + 32 * at, xm, xm + 1);
  }
}

// --- matrix product -------------------------------------------------------------------------------------------
//
// Activations are widened to i16 once, in the order in which the weights' nibbles or bytes come apart. Four groups
// of a row make four i32 sums, one vector, which meets four scales of the row and four of the activations: one
// vector operation per float operation of the contract. Lanes 0..3 and 4..7 of the contract are two accumulators.
// Where a row's groups end inside a four, the missing ones count as zero scales: adding their +-0 changes no bit,
// since an accumulator is never -0.

// Room for what a thread widens: xs[tokens][cols] as i16, then scales and sums padded to fours.
typedef struct {
  i16 *x;
  f32 *scale, *sum;
  u32 quads;
} Wide;

#define TILE 4

static inline v128 dot(v128 a, v128 b) { return wasm_i32x4_dot_i16x8(a, b); }

// [a0+a1+a2+a3, b0+..., c0+..., d0+...]
static inline v128 sums(v128 a, v128 b, v128 c, v128 d) {
  v128 ab = wasm_i32x4_add(wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
  v128 cd = wasm_i32x4_add(wasm_i32x4_shuffle(c, d, 0, 2, 4, 6), wasm_i32x4_shuffle(c, d, 1, 3, 5, 7));
  return wasm_i32x4_add(wasm_i32x4_shuffle(ab, cd, 0, 2, 4, 6), wasm_i32x4_shuffle(ab, cd, 1, 3, 5, 7));
}

// A group's weights as 4 x i16x8, in the order that `widen` gives the activations.
static inline void unpack(u32 kernel, const u8 *quants, u32 block, v128 w[4]) {
  if (kernel == MATMUL_Q8_0) {
    const v128 low = load(quants + 32 * block), high = load(quants + 32 * block + 16);
    w[0] = wasm_i16x8_shr(wasm_i16x8_shl(low, 8), 8);
    w[1] = wasm_i16x8_shr(low, 8);
    w[2] = wasm_i16x8_shr(wasm_i16x8_shl(high, 8), 8);
    w[3] = wasm_i16x8_shr(high, 8);
    return;
  }
  const v128 q = load(quants + 16 * block), mask = wasm_i16x8_splat(15);
  w[0] = wasm_v128_and(q, mask);
  w[1] = wasm_v128_and(wasm_u16x8_shr(q, 8), mask);
  w[2] = wasm_v128_and(wasm_u16x8_shr(q, 4), mask);
  w[3] = wasm_u16x8_shr(q, 12);
  if (kernel == MATMUL_Q4_0) {
    const v128 eight = wasm_i16x8_splat(8);
    for (int i = 0; i < 4; i++) w[i] = wasm_i16x8_sub(w[i], eight);
  }
}

// Bytes 0..15 and 16..31 of a group, each as even then odd bytes: the order of `unpack`, for every type.
static void widen(const u32 *c, const u32 *b, u32 first, u32 tokens, Wide *wide) {
  const u32 cols = c[0], groups = cols / 32, padded = wide->quads * 4;
  for (u32 t = 0; t < tokens; t++) {
    const i8 *q = (const i8 *)b[0] + (first + t) * cols;
    const f32 *xm = (const f32 *)b[1] + (first + t) * groups * 2;
    i16 *x = wide->x + t * padded * 32;
    for (u32 g = 0; g < groups; g++) {
      for (int h = 0; h < 2; h++) {
        const v128 bytes = load(q + 32 * g + 16 * h);
        wasm_v128_store(x + 32 * g + 16 * h, wasm_i16x8_shr(wasm_i16x8_shl(bytes, 8), 8));
        wasm_v128_store(x + 32 * g + 16 * h + 8, wasm_i16x8_shr(bytes, 8));
      }
      wide->scale[t * padded + g] = xm[2 * g];
      wide->sum[t * padded + g] = xm[2 * g + 1];
    }
    for (u32 g = groups; g < padded; g++) wide->scale[t * padded + g] = wide->sum[t * padded + g] = 0.0f;
  }
}

// Four scales of a row from group g on; with q4_1 four minima as well. `left` groups are there.
static inline v128 four_halves(const u16 *h, u32 left) {
  if (left >= 4) return half4(wasm_u32x4_load16x4(h));
  v128 v = u4(0);
  v = wasm_i32x4_replace_lane(v, 0, h[0]);
  if (left > 1) v = wasm_i32x4_replace_lane(v, 1, h[1]);
  if (left > 2) v = wasm_i32x4_replace_lane(v, 2, h[2]);
  return half4(v);
}

static inline void four_pairs(const u32 *p, u32 left, v128 *d, v128 *m) {
  v128 v;
  if (left >= 4) {
    v = load(p);
  } else {
    v = u4(p[0]);
    v = wasm_i32x4_replace_lane(v, 1, left > 1 ? (i32)p[1] : 0);
    v = wasm_i32x4_replace_lane(v, 2, left > 2 ? (i32)p[2] : 0);
    v = wasm_i32x4_replace_lane(v, 3, 0);
  }
  *d = half4(wasm_v128_and(v, u4(0xffff)));
  *m = half4(wasm_u32x4_shr(v, 16));
}

// One row against `tokens` (1 or TILE) tokens of `wide` from token t on.
static inline __attribute__((always_inline)) void row_times(
    u32 kernel, const u32 *c, const u32 *b, const Wide *wide, u32 row, u32 t, const u32 tokens, f32 *result) {
  const u32 groups = c[0] / 32, padded = wide->quads * 4;
  const u8 *quants = (const u8 *)b[2] + row * groups * (kernel == MATMUL_Q8_0 ? 32 : 16);
  v128 acc[2][TILE];
  for (u32 i = 0; i < tokens; i++) acc[0][i] = acc[1][i] = f4(0.0f);
  for (u32 quad = 0; quad < wide->quads; quad++) {
    const u32 g = 4 * quad, left = groups - g;
    v128 d, m = u4(0);
    if (kernel == MATMUL_Q4_1) four_pairs((const u32 *)b[3] + row * groups + g, left, &d, &m);
    else d = four_halves((const u16 *)b[3] + row * groups + g, left);
    v128 part[4][TILE];
    for (u32 j = 0; j < 4; j++) {
      if (j < left) {
        v128 w[4];
        unpack(kernel, quants, g + j, w);
        for (u32 i = 0; i < tokens; i++) {
          const i16 *x = wide->x + ((t + i) * padded + g + j) * 32;
          part[j][i] = wasm_i32x4_add(wasm_i32x4_add(dot(w[0], load(x)), dot(w[1], load(x + 8))),
                                      wasm_i32x4_add(dot(w[2], load(x + 16)), dot(w[3], load(x + 24))));
        }
      } else {
        for (u32 i = 0; i < tokens; i++) part[j][i] = u4(0);
      }
    }
    for (u32 i = 0; i < tokens; i++) {
      const v128 dots = wasm_f32x4_convert_i32x4(sums(part[0][i], part[1][i], part[2][i], part[3][i]));
      const u32 at = (t + i) * padded + g;
      v128 term = mul(dots, mul(d, load(wide->scale + at)));
      if (kernel == MATMUL_Q4_1) term = add(term, mul(m, load(wide->sum + at)));
      acc[quad & 1][i] = add(acc[quad & 1][i], term);
    }
  }
  for (u32 i = 0; i < tokens; i++) {
    f32 total = 0.0f;
    for (int half_of_lanes = 0; half_of_lanes < 2; half_of_lanes++) {
      const v128 a = acc[half_of_lanes][i];
      total = total + wasm_f32x4_extract_lane(a, 0);
      total = total + wasm_f32x4_extract_lane(a, 1);
      total = total + wasm_f32x4_extract_lane(a, 2);
      total = total + wasm_f32x4_extract_lane(a, 3);
    }
    result[i] = total;
  }
}

static inline __attribute__((always_inline)) void matmul_rows(
    u32 kernel, const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {
  const u32 stride = c[2], offset = c[3];
  f32 *y = (f32 *)b[4];
  for (u32 row = low; row < high; row++) {
    for (u32 t = 0; t < tokens;) {
      f32 result[TILE];
      const u32 n = tokens - t >= TILE ? TILE : 1;
      if (n == TILE) row_times(kernel, c, b, wide, row, t, TILE, result);
      else row_times(kernel, c, b, wide, row, t, 1, result);
      for (u32 i = 0; i < n; i++, t++) {
        f32 *place = y + t * stride + offset + row;
        *place = c[4] ? *place + result[i] : result[i];
      }
    }
  }
}

static void matmul(u32 kernel, const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {
  if (kernel == MATMUL_Q4_0) matmul_rows(MATMUL_Q4_0, c, b, wide, tokens, low, high);
  else if (kernel == MATMUL_Q4_1) matmul_rows(MATMUL_Q4_1, c, b, wide, tokens, low, high);
  else matmul_rows(MATMUL_Q8_0, c, b, wide, tokens, low, high);
}

// --- attention ------------------------------------------------------------------------------------------------

#define MAX_HEAD_DIM 1024
// Positions that are added by themselves.
#define BLOCK 64

// Rotates, quantises and stores one head of q, k or v of token t; before that, adds its bias or norms it.
static void rope_kv(u32 kernel, const u32 *c, const u32 *b, const Step *step, u32 t, u32 unit) {
  const u32 n_heads = c[0], n_kv = c[1], head_dim = c[2], max_seq = c[3], half_dim = head_dim / 2;
  const u32 pos = step->pos + t, groups = head_dim / 32;
  const f32 *v = (const f32 *)b[0] + (t * (n_heads + 2 * n_kv) + unit) * head_dim;
  f32 head[MAX_HEAD_DIM] __attribute__((aligned(16)));
  if (kernel == BIAS_ROPE_KV) {
    const f32 *bias = (const f32 *)b[6] + unit * head_dim;
    for (u32 d = 0; d < head_dim; d += 4) wasm_v128_store(head + d, add(load(v + d), load(bias + d)));
    v = head;
  } else if (kernel == NORM_ROPE_KV && unit < n_heads + n_kv) {
    const f32 *weight = (const f32 *)b[6] + (unit < n_heads ? 0 : head_dim);
    const v128 factor = f4(norm_factor(v, head_dim, bits_f32(c[4]), bits_f32(c[5])));
    for (u32 d = 0; d < head_dim; d += 4) {
      wasm_v128_store(head + d, mul(mul(load(v + d), factor), load(weight + d)));
    }
    v = head;
  }
  const f32 *turn = (const f32 *)b[1] + pos * head_dim;
  const u32 cached = unit - n_heads;
  const u32 row = unit < n_heads ? t * n_heads + unit : ((cached / n_kv) * max_seq + pos) * n_kv + cached % n_kv;
  for (u32 g = 0; g < groups; g++) {
    f32 value[32] __attribute__((aligned(16)));
    for (u32 i = 0; i < 32; i++) {
      const u32 d = 32 * g + i, pair = d % half_dim;
      if (unit >= n_heads + n_kv) value[i] = v[d];
      else if (d < half_dim) value[i] = v[d] * turn[2 * pair] - v[d + half_dim] * turn[2 * pair + 1];
      else value[i] = v[d] * turn[2 * pair] + v[d - half_dim] * turn[2 * pair + 1];
    }
    i8 *q = unit < n_heads ? (i8 *)b[2] : (i8 *)b[4];
    f32 *scale = unit < n_heads ? (f32 *)b[3] : (f32 *)b[5];
    quantize_group((const v128 *)value, q + (row * groups + g) * 32, scale + row * groups + g, 0);
  }
}

static inline i32 dot32(const i8 *a, const i8 *b) {
  v128 a0 = load(a), a1 = load(a + 16), b0 = load(b), b1 = load(b + 16);
  v128 s = dot(wasm_i16x8_extend_low_i8x16(a0), wasm_i16x8_extend_low_i8x16(b0));
  s = wasm_i32x4_add(s, dot(wasm_i16x8_extend_high_i8x16(a0), wasm_i16x8_extend_high_i8x16(b0)));
  s = wasm_i32x4_add(s, dot(wasm_i16x8_extend_low_i8x16(a1), wasm_i16x8_extend_low_i8x16(b1)));
  s = wasm_i32x4_add(s, dot(wasm_i16x8_extend_high_i8x16(a1), wasm_i16x8_extend_high_i8x16(b1)));
  s = wasm_i32x4_add(s, wasm_i32x4_shuffle(s, s, 2, 3, 0, 1));
  return wasm_i32x4_extract_lane(s, 0) + wasm_i32x4_extract_lane(s, 1);
}

static void attn_scores(const u32 *c, const u32 *b, const Step *step, u32 t, u32 h) {
  const u32 n_heads = c[0], n_kv = c[1], groups = c[2] / 32, max_seq = c[3];
  const f32 scale = bits_f32(c[4]);
  const u32 q = (t * n_heads + h) * groups, kv_head = h * n_kv / n_heads;
  const f32 *qs = (const f32 *)b[1], *kvs = (const f32 *)b[3];
  f32 *scores = (f32 *)b[4] + (t * n_heads + h) * max_seq;
  f32 *peaks = (f32 *)b[5] + (t * n_heads + h) * ((max_seq + BLOCK - 1) / BLOCK);
  for (u32 j = 0; j <= step->pos + t; j++) {
    const u32 k = (j * n_kv + kv_head) * groups;
    f32 total = 0.0f;
    for (u32 g = 0; g < groups; g++) {
      const i32 sum = dot32((const i8 *)b[0] + 32 * (q + g), (const i8 *)b[2] + 32 * (k + g));
      total = total + (f32)sum * (qs[q + g] * kvs[k + g]);
    }
    scores[j] = total * scale;
    f32 *peak = peaks + j / BLOCK;
    if (j % BLOCK == 0 || scores[j] > *peak) *peak = scores[j];
  }
}

// A block of positions at a time, and in it a group of 32 elements: its sums stay in registers while the positions
// go by.
static void attn_values(const u32 *c, const u32 *b, const Step *step, u32 t, u32 h) {
  const u32 n_heads = c[0], n_kv = c[1], groups = c[2] / 32, max_seq = c[3], blocks = (max_seq + BLOCK - 1) / BLOCK;
  const u32 row = t * n_heads + h, kv_head = h * n_kv / n_heads, seen = step->pos + t + 1;
  const f32 *scores = (const f32 *)b[0] + row * max_seq, *peaks = (const f32 *)b[1] + row * blocks;
  const f32 *kvs = (const f32 *)b[3];
  f32 *masses = (f32 *)b[4] + row * blocks, *values = (f32 *)b[5] + row * blocks * c[2];
  f32 peak = peaks[0];
  for (u32 block = 1; block * BLOCK < seen; block++) peak = peaks[block] > peak ? peaks[block] : peak;
  for (u32 block = 0; block * BLOCK < seen; block++) {
    const u32 start = block * BLOCK, left = seen - start, count = left < BLOCK ? left : BLOCK;
    f32 p[BLOCK] __attribute__((aligned(16)));
    u32 j = 0;
    for (; j + 4 <= count; j += 4) wasm_v128_store(p + j, exp4(sub(load(scores + start + j), f4(peak))));
    for (; j < count; j++) p[j] = wasm_f32x4_extract_lane(exp4(f4(scores[start + j] - peak)), 0);
    f32 mass = 0.0f;
    for (j = 0; j < count; j++) mass = mass + p[j];
    masses[block] = mass;
    for (u32 g = 0; g < groups; g++) {
      v128 acc[8];
      for (int i = 0; i < 8; i++) acc[i] = f4(0.0f);
      for (j = 0; j < count; j++) {
        const u32 v = ((max_seq + start + j) * n_kv + kv_head) * groups + g;
        const v128 weight = f4(p[j] * kvs[v]);
        for (int i = 0; i < 8; i++) {
          const v128 q = wasm_i32x4_extend_low_i16x8(wasm_i16x8_load8x8((const i8 *)b[2] + 32 * v + 4 * i));
          acc[i] = add(acc[i], mul(weight, wasm_f32x4_convert_i32x4(q)));
        }
      }
      for (int i = 0; i < 8; i++) wasm_v128_store(values + block * c[2] + 32 * g + 4 * i, acc[i]);
    }
  }
}

static void attn_quantize(const u32 *c, const u32 *b, const Step *step, u32 t, u32 h) {
  const u32 head_dim = c[1], blocks = (c[2] + BLOCK - 1) / BLOCK, row = t * c[0] + h;
  const u32 count = (step->pos + t) / BLOCK + 1;
  const f32 *masses = (const f32 *)b[0] + row * blocks, *values = (const f32 *)b[1] + row * blocks * head_dim;
  f32 mass = 0.0f;
  for (u32 block = 0; block < count; block++) mass = mass + masses[block];
  const v128 norm = recip(f4(mass));
  for (u32 g = 0; g < head_dim / 32; g++) {
    v128 total[8];
    for (int i = 0; i < 8; i++) total[i] = f4(0.0f);
    for (u32 block = 0; block < count; block++) {
      for (int i = 0; i < 8; i++) total[i] = add(total[i], load(values + block * head_dim + 32 * g + 4 * i));
    }
    for (int i = 0; i < 8; i++) total[i] = mul(total[i], norm);
    const u32 at = row * (head_dim / 32) + g;
    f32 *xm = (f32 *)b[3] + 2 * at;
    quantize_group(total, (i8 *)b[2] + 32 * at, xm, xm + 1);
  }
}

// --- the walk -------------------------------------------------------------------------------------------------

#ifdef __wasm_atomics__
static inline u32 claim(Turn *turn, u32 n_threads, u32 *mine) {
  (void)n_threads, (void)mine;
  return __atomic_fetch_add(&turn->next, 1, __ATOMIC_RELAXED);
}

// A thread that dies can't say so to the others: they look at `stop` ten times a second, and give up after a while.
#define SLICE_NS 100000000ll
#define PATIENCE_SLICES 300
#define TIMED_OUT 2

// Until all threads have ended this operation: a short spin, since the others are usually close, then sleep. Whether
// they did.
static inline int meet(Turn *turn, u32 n_threads, const u32 *stop) {
  if (n_threads == 1) return 1;
  u32 done = __atomic_add_fetch(&turn->done, 1, __ATOMIC_ACQ_REL);
  if (done == n_threads) {
    __builtin_wasm_memory_atomic_notify((i32 *)&turn->done, n_threads);
    return 1;
  }
  for (u32 spin = 0; spin < 4096; spin++) {
    if (__atomic_load_n(&turn->done, __ATOMIC_ACQUIRE) == n_threads) return 1;
  }
  for (u32 slices = 0; slices < PATIENCE_SLICES;) {
    done = __atomic_load_n(&turn->done, __ATOMIC_ACQUIRE);
    if (done == n_threads) return 1;
    if (__atomic_load_n(stop, __ATOMIC_ACQUIRE)) return 0;
    slices += __builtin_wasm_memory_atomic_wait32((i32 *)&turn->done, (i32)done, SLICE_NS) == TIMED_OUT;
  }
  return 0;
}
#else
static inline u32 claim(Turn *turn, u32 n_threads, u32 *mine) {
  (void)turn, (void)n_threads;
  return (*mine)++;
}

static inline int meet(Turn *turn, u32 n_threads, const u32 *stop) {
  (void)turn, (void)n_threads, (void)stop;
  return 1;
}
#endif

#define ROWS_AT_ONCE 32

static void run_op(const Op *op, const Step *step, Turn *turn, u8 *scratch, u32 n_threads) {
  const u32 kernel = op->kernel, *c = op->constants, *b = op->buffers, n_tokens = step->n_tokens;
  u32 mine = 0, part;
  switch (kernel) {
    case EMBED_Q4_0: case EMBED_Q4_1: case EMBED_Q8_0:
      while ((part = claim(turn, n_threads, &mine)) < n_tokens) embed(kernel, c, b, part);
      break;
    case RMSNORM_QUANTIZE:
      while ((part = claim(turn, n_threads, &mine)) < n_tokens) rmsnorm_quantize(c, b, part);
      break;
    case SILU_MUL_QUANTIZE:
      while ((part = claim(turn, n_threads, &mine)) < n_tokens) silu_mul_quantize(c, b, part);
      break;
    case MATMUL_Q4_0: case MATMUL_Q4_1: case MATMUL_Q8_0: {
      const u32 rows = c[1], first = c[5] ? n_tokens - 1 : 0, tokens = n_tokens - first;
      Wide wide = {.quads = (c[0] / 32 + 3) / 4};
      wide.x = (i16 *)scratch;
      wide.scale = (f32 *)(scratch + tokens * wide.quads * 4 * 32 * sizeof(i16));
      wide.sum = wide.scale + tokens * wide.quads * 4;
      int widened = 0;
      while ((part = claim(turn, n_threads, &mine)) * ROWS_AT_ONCE < rows) {
        if (!widened) widen(c, b, first, tokens, &wide);
        widened = 1;
        const u32 low = part * ROWS_AT_ONCE, high = low + ROWS_AT_ONCE < rows ? low + ROWS_AT_ONCE : rows;
        matmul(kernel, c, b, &wide, tokens, low, high);
      }
      break;
    }
    default: {
      const int rope = kernel == ROPE_KV || kernel == BIAS_ROPE_KV || kernel == NORM_ROPE_KV;
      const u32 units = rope ? c[0] + 2 * c[1] : c[0];
      while ((part = claim(turn, n_threads, &mine)) < n_tokens * units) {
        const u32 t = part / units, unit = part % units;
        if (rope) rope_kv(kernel, c, b, step, t, unit);
        else if (kernel == ATTN_SCORES) attn_scores(c, b, step, t, unit);
        else if (kernel == ATTN_VALUES) attn_values(c, b, step, t, unit);
        else attn_quantize(c, b, step, t, unit);
      }
    }
  }
}

// Runs a program: 1, or 0 when another thread did not do its part. `turns`: n_ops Turns, all zero; `scratch`:
// `scratch_bytes` for each thread; `stop`: a word that is set when a thread has failed.
u32 EXPORT(forward_run)(u32 ops, u32 n_ops, u32 step, u32 turns, u32 scratch, u32 scratch_bytes, u32 stop, u32 thread,
                        u32 n_threads) {
  for (u32 i = 0; i < n_ops; i++) {
    Turn *turn = (Turn *)turns + i;
    run_op((const Op *)ops + i, (const Step *)step, turn, (u8 *)scratch + thread * scratch_bytes, n_threads);
    if (!meet(turn, n_threads, (const u32 *)stop)) return 0;
  }
  return 1;
}
