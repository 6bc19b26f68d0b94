// Forward2 on wasm SIMD: the plan's kernels, with the reference's bits (docs/forward.md, forward2/reference.py).
//
// Theory of operation. Python writes a plan into memory as an array of operations (forward2/wasm.py): a kernel's
// number, its constants, the addresses of its buffers. A pass is one call of `forward_run` in every thread, with
// the same arguments. All threads walk the operations in step: the work of one is cut into parts, each thread takes
// those of its own share, which lie together in memory, then what is left of the others', and none begins the next
// operation before all have ended this one. A part's outputs depend on its inputs alone, so neither the number of
// threads nor who takes what can show in a bit.
//
// Bits. Without fast-math, C's float operations are the reference's: one correctly rounded operation each, in the
// order written; wasm has no fused multiply-add outside relaxed SIMD, which is not used (its results differ by
// machine). Integer sums are exact in any order. A vector's four lanes are four of the contract's lanes.
//
// Memory is imported. Nothing here allocates, and no global changes: `scratch` gives each thread room of its own.

#include <stdint.h>
#include <wasm_simd128.h>

#include "sha256.h"

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

// What the threads share of an operation, zeroed before a pass: a cache line with the number of parts that are done,
// then one for each thread with the number of parts of its share that are taken.
typedef struct {
  u32 count, padding[15];
} Line;

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

// A constant for a loop. One that the compilers of the browsers know for one, they make anew at every use.
static inline v128 hidden(v128 v) {
  __asm__ volatile("" : "+r"(v));
  return v;
}

typedef struct {
  v128 fields, factor;
} Halves;

static inline Halves halves(void) { return (Halves){hidden(u4(0x8fffe000)), hidden(f4(0x1p112f))}; }

// Four f16, each in the upper half of a 32-bit lane, whose lower half does not matter. Shifted down by 3 bits, sign and
// all, the fields of an f16 lie where an f32 has its own, but for an exponent that is 112 too small. The product is
// exact, for a subnormal f16 too.
static inline v128 half4(v128 h, Halves k) {
  return mul(wasm_v128_and(wasm_i32x4_shr(h, 3), k.fields), k.factor);
}

static inline f32 half(u16 h) { return wasm_f32x4_extract_lane(half4(wasm_i32x4_splat((i32)h << 16), halves()), 0); }

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

// Groups low to high of token t.
static void silu_mul_quantize(const u32 *c, const u32 *b, u32 t, u32 low, u32 high) {
  const u32 cols = c[0];
  const f32 *gate = (const f32 *)b[0] + t * 2 * cols, *up = gate + cols;
  for (u32 g = low; g < high; g++) {
    v128 value[8];
    for (int i = 0; i < 8; i++) value[i] = mul(silu(load(gate + 32 * g + 4 * i)), load(up + 32 * g + 4 * i));
    const u32 at = t * (cols / 32) + g;
    f32 *xm = (f32 *)b[2] + 2 * at;
    quantize_group(value, (i8 *)b[1] + 32 * at, xm, xm + 1);
  }
}

// --- matrix product -------------------------------------------------------------------------------------------
//
// Activations are widened to i16 once. Four groups of a row make four i32 sums, one vector, which meets four scales
// of the row and four of the activations: one vector operation per float operation of the contract. Lanes 0..3 and
// 4..7 of the contract are two accumulators.
//
// A 4-bit weight is multiplied where it lies. As 16-bit words, a block's nibbles are worth 1, 16 and 256 times
// themselves under a mask, the top ones 1 after a shift; the activations that they meet are widened times 256, 16, 1
// and 256. So every product is 256 times itself, and the sum, below 2^24 in all, is shifted down at its end. An offset
// of 8 (q4_0) is taken off the sum: 8 times the sum of the activations.
//
// A row's groups are padded to fours: what lies behind the row, the next one or another buffer, meets activations of
// zero with scales of zero. Adding the +-0 that comes of it changes no bit, since an accumulator is never -0.

// What a thread widens of `tokens` tokens: x[tokens][padded][32], and for each group its scale, scale * sum and, for q4_0
// alone, 8 * sum.
typedef struct {
  i16 *x;
  f32 *scale, *sum;
  i32 *offset;
  u32 padded;
} Wide;

static inline v128 dot(v128 a, v128 b) { return wasm_i32x4_dot_i16x8(a, b); }
static inline v128 plus(v128 a, v128 b) { return wasm_i32x4_add(a, b); }

// [a0+a1, a2+a3, b0+b1, b2+b3]
static inline v128 pairs(v128 a, v128 b) {
  return plus(wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
}

// Keeps the compiler from moving what comes before behind what comes after: it would load all that a tile needs first
// and have no registers left.
#define KEEP(v) __asm__ volatile("" : "+r"(v) : : "memory")

#define UNROLL _Pragma("clang loop unroll(full)")

static Wide wide_of(const u32 *c, u32 tokens, u8 *scratch) {
  const u32 padded = (c[0] / 32 + 3) / 4 * 4;
  Wide wide = {.x = (i16 *)scratch, .padded = padded};
  wide.scale = (f32 *)(wide.x + tokens * padded * 32);
  wide.sum = wide.scale + tokens * padded;
  wide.offset = (i32 *)(wide.sum + tokens * padded);
  return wide;
}

// A group of activations in the order, and times the factors, of `weights`.
static inline void widen_group(u32 kernel, const i8 *q, i16 *x) {
  const v128 low = load(q), high = load(q + 16);
  if (kernel == MATMUL_Q8_0) {
    wasm_v128_store(x, wasm_i16x8_extend_low_i8x16(low));
    wasm_v128_store(x + 8, wasm_i16x8_extend_high_i8x16(low));
    wasm_v128_store(x + 16, wasm_i16x8_extend_low_i8x16(high));
    wasm_v128_store(x + 24, wasm_i16x8_extend_high_i8x16(high));
  } else {
    wasm_v128_store(x, wasm_i16x8_shl(low, 8));
    wasm_v128_store(x + 8, wasm_i16x8_shr(wasm_i16x8_shl(high, 8), 4));
    wasm_v128_store(x + 16, wasm_i16x8_shr(low, 8));
    wasm_v128_store(x + 24, wasm_v128_and(high, wasm_u16x8_splat(0xff00)));
  }
}

static i32 sum_of_32(const i8 *q) {
  const v128 two = wasm_i16x8_add(wasm_i16x8_extadd_pairwise_i8x16(load(q)),
                                  wasm_i16x8_extadd_pairwise_i8x16(load(q + 16)));
  v128 four = wasm_i32x4_extadd_pairwise_i16x8(two);
  four = pairs(four, four);
  return wasm_i32x4_extract_lane(four, 0) + wasm_i32x4_extract_lane(four, 1);
}

static void widen(u32 kernel, const u32 *c, const u32 *b, u32 first, u32 tokens, const Wide *wide) {
  const u32 cols = c[0], groups = cols / 32;
  for (u32 t = 0; t < tokens; t++) {
    const i8 *q = (const i8 *)b[0] + (first + t) * cols;
    const f32 *xm = (const f32 *)b[1] + (first + t) * groups * 2;
    for (u32 g = 0; g < wide->padded; g++) {
      const u32 at = t * wide->padded + g;
      i16 *x = wide->x + at * 32;
      if (g < groups) {
        widen_group(kernel, q + 32 * g, x);
        wide->scale[at] = xm[2 * g];
        wide->sum[at] = xm[2 * g + 1];
        if (kernel == MATMUL_Q4_0) wide->offset[at] = 8 * sum_of_32(q + 32 * g);
      } else {
        for (u32 i = 0; i < 32; i += 8) wasm_v128_store(x + i, u4(0));
        wide->scale[at] = wide->sum[at] = 0.0f;
        wide->offset[at] = 0;
      }
    }
  }
}

// The k-th eight of a group's weights.
static inline v128 weights(const u32 kernel, const u8 *quants, const u32 k, const v128 nibbles[3]) {
  if (kernel == MATMUL_Q8_0) return wasm_i16x8_load8x8(quants + 8 * k);
  const v128 q = load(quants);
  return k == 3 ? wasm_u16x8_shr(q, 12) : wasm_v128_and(q, nibbles[k]);
}

#define MAX_ROWS 2
#define MAX_TOKENS 4

// n_rows rows from `row` on against n_tokens tokens of `wide` from t on.
static inline __attribute__((always_inline)) void tile(
    const u32 kernel, const u32 n_rows, const u32 n_tokens, const u32 *c, const u32 *b, const Wide *wide, u32 row,
    u32 t) {
  const u32 groups = c[0] / 32, padded = wide->padded;
  const u32 block_bytes = kernel == MATMUL_Q8_0 ? 32 : 16, scale_bytes = kernel == MATMUL_Q4_1 ? 4 : 2;
  const u8 *quants = (const u8 *)b[2] + row * groups * block_bytes;
  const u8 *scales = (const u8 *)b[3] + row * groups * scale_bytes;
  const i16 *x = wide->x + t * padded * 32;
  const f32 *scale = wide->scale + t * padded, *sum = wide->sum + t * padded;
  const i32 *offset = wide->offset + t * padded;
  const v128 nibbles[3] = {hidden(wasm_i16x8_splat(0x000f)), hidden(wasm_i16x8_splat(0x00f0)),
                           hidden(wasm_i16x8_splat(0x0f00))};
  const Halves scaling = halves();
  // The accumulators that the next four groups go to, and those of the four after.
  v128 now[MAX_ROWS][MAX_TOKENS], then[MAX_ROWS][MAX_TOKENS];
  for (u32 r = 0; r < n_rows; r++) {
    for (u32 i = 0; i < n_tokens; i++) now[r][i] = then[r][i] = f4(0.0f);
  }
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < padded; g += 4) {
    v128 last[MAX_ROWS][MAX_TOKENS], two[MAX_ROWS][MAX_TOKENS], four[MAX_ROWS][MAX_TOKENS];
    UNROLL for (u32 j = 0; j < 4; j++) {
      v128 w[MAX_ROWS][4];
      UNROLL for (u32 r = 0; r < n_rows; r++) {
        const u8 *group = quants + (r * groups + j) * block_bytes;
        UNROLL for (u32 k = 0; k < 4; k++) w[r][k] = weights(kernel, group, k, nibbles);
      }
      UNROLL for (u32 i = 0; i < n_tokens; i++) {
        const i16 *xi = x + i * padded * 32;
        v128 part[MAX_ROWS];
        UNROLL for (u32 k = 0; k < 4; k++) {
          const v128 xk = load(xi + 32 * j + 8 * k);
          UNROLL for (u32 r = 0; r < n_rows; r++) {
            part[r] = k ? plus(part[r], dot(w[r][k], xk)) : dot(w[r][k], xk);
          }
        }
        UNROLL for (u32 r = 0; r < n_rows; r++) {
          KEEP(part[r]);
          if (j % 2 == 0) last[r][i] = part[r];
          if (j == 1) two[r][i] = pairs(last[r][i], part[r]);
          if (j == 3) four[r][i] = pairs(two[r][i], pairs(last[r][i], part[r]));
        }
      }
    }
    UNROLL for (u32 r = 0; r < n_rows; r++) {
      const u8 *at = scales + r * groups * scale_bytes;
      const v128 both = kernel == MATMUL_Q4_1 ? load(at) : wasm_u32x4_load16x4(at);
      const v128 d = half4(wasm_i32x4_shl(both, 16), scaling), m = half4(both, scaling);
      UNROLL for (u32 i = 0; i < n_tokens; i++) {
        v128 dots = four[r][i];
        if (kernel != MATMUL_Q8_0) dots = wasm_i32x4_shr(dots, 8);
        if (kernel == MATMUL_Q4_0) dots = wasm_i32x4_sub(dots, load(offset + i * padded));
        v128 term = mul(wasm_f32x4_convert_i32x4(dots), mul(d, load(scale + i * padded)));
        if (kernel == MATMUL_Q4_1) term = add(term, mul(m, load(sum + i * padded)));
        const v128 total = add(now[r][i], term);
        now[r][i] = then[r][i];
        then[r][i] = total;
      }
    }
    quants += 4 * block_bytes;
    scales += 4 * scale_bytes;
    x += 4 * 32;
    scale += 4;
    sum += 4;
    offset += 4;
  }
  const int swapped = padded / 4 % 2;
  for (u32 r = 0; r < n_rows; r++) {
    for (u32 i = 0; i < n_tokens; i++) {
      const v128 low = swapped ? then[r][i] : now[r][i], high = swapped ? now[r][i] : then[r][i];
      f32 total = 0.0f;
      for (int upper = 0; upper < 2; upper++) {
        const v128 a = upper ? high : low;
        total = total + wasm_f32x4_extract_lane(a, 0);
        total = total + wasm_f32x4_extract_lane(a, 1);
        total = total + wasm_f32x4_extract_lane(a, 2);
        total = total + wasm_f32x4_extract_lane(a, 3);
      }
      f32 *place = (f32 *)b[4] + (t + i) * c[2] + c[3] + row + r;
      *place = c[4] ? *place + total : total;
    }
  }
}

// Tiles are functions of their own: compilers of the browsers give up on registers in long ones. Of one token, two 4-bit
// rows share the loads of its activations; 8-bit ones go by themselves, since memory is read ahead of one stream better
// than of two.
#define TILES(kernel)                                                                                                 \
  static __attribute__((noinline)) void kernel##_WIDE(const u32 *c, const u32 *b, const Wide *wide, u32 row, u32 t) { \
    tile(kernel, MAX_ROWS, MAX_TOKENS, c, b, wide, row, t);                                                           \
  }                                                                                                                   \
  static __attribute__((noinline)) void kernel##_PAIR(const u32 *c, const u32 *b, const Wide *wide, u32 row, u32 t) { \
    tile(kernel, MAX_ROWS, 1, c, b, wide, row, t);                                                                    \
  }                                                                                                                   \
  static __attribute__((noinline)) void kernel##_ONE(const u32 *c, const u32 *b, const Wide *wide, u32 row, u32 t) {  \
    tile(kernel, 1, 1, c, b, wide, row, t);                                                                           \
  }                                                                                                                   \
  static void kernel##_ROWS(const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {            \
    const u32 wide_tokens = tokens / MAX_TOKENS * MAX_TOKENS, wide_rows = (high - low) / MAX_ROWS * MAX_ROWS;         \
    for (u32 t = 0; t < wide_tokens; t += MAX_TOKENS) {                                                               \
      for (u32 row = low; row < low + wide_rows; row += MAX_ROWS) kernel##_WIDE(c, b, wide, row, t);                  \
    }                                                                                                                 \
    const u32 paired = kernel != MATMUL_Q8_0 ? wide_rows : 0;                                                       \
    for (u32 t = 0; t < tokens; t++) {                                                                                \
      u32 row = t < wide_tokens ? low + wide_rows : low;                                                              \
      for (; row < low + paired; row += MAX_ROWS) kernel##_PAIR(c, b, wide, row, t);                                  \
      for (; row < high; row++) kernel##_ONE(c, b, wide, row, t);                                                     \
    }                                                                                                                 \
  }
TILES(MATMUL_Q4_0)
TILES(MATMUL_Q4_1)
TILES(MATMUL_Q8_0)

static void matmul(u32 kernel, const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {
  if (kernel == MATMUL_Q4_0) MATMUL_Q4_0_ROWS(c, b, wide, tokens, low, high);
  else if (kernel == MATMUL_Q4_1) MATMUL_Q4_1_ROWS(c, b, wide, tokens, low, high);
  else MATMUL_Q8_0_ROWS(c, b, wide, tokens, low, high);
}

// --- attention ------------------------------------------------------------------------------------------------

#define MAX_HEAD_DIM 1024
// Positions that are added by themselves.
#define BLOCK 64
// Heads whose sums stay in registers together.
#define HEADS_AT_ONCE 3

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

// The parts of scores and values: a token, a head of k and v with all heads of q that share it, a block of positions.
typedef struct {
  u32 t, kv_head, block, first_head, n_heads;
} Part;

static Part part_of(const u32 *c, const Step *step, u32 part) {
  const u32 n_kv = c[1], blocks = (step->pos + step->n_tokens - 1) / BLOCK + 1, share = c[0] / n_kv;
  const u32 kv_head = part % n_kv;
  return (Part){part / n_kv / blocks, kv_head, part / n_kv % blocks, kv_head * share, share};
}

static inline v128 dots_of_32(const i8 *k, const i16 *q) {
  const v128 first = plus(dot(wasm_i16x8_load8x8(k), load(q)), dot(wasm_i16x8_load8x8(k + 8), load(q + 8)));
  return plus(first, plus(dot(wasm_i16x8_load8x8(k + 16), load(q + 16)), dot(wasm_i16x8_load8x8(k + 24), load(q + 24))));
}

// Four positions at a time. Behind the last one they are computed from what lies there and not kept: behind k lies v.
static void attn_scores(const u32 *c, const u32 *b, const Step *step, const Part part) {
  const u32 n_heads = c[0], n_kv = c[1], head_dim = c[2], groups = head_dim / 32, max_seq = c[3];
  const u32 start = part.block * BLOCK, seen = step->pos + part.t + 1;
  if (start >= seen) return;
  const u32 count = seen - start < BLOCK ? seen - start : BLOCK;
  const v128 scale = f4(bits_f32(c[4]));
  const u32 stride = n_kv * groups, cached = start * stride + part.kv_head * groups;
  for (u32 h = part.first_head; h < part.first_head + part.n_heads; h++) {
    const u32 row = part.t * n_heads + h;
    const i8 *q = (const i8 *)b[0] + row * head_dim;
    const f32 *qs = (const f32 *)b[1] + row * groups;
    i16 wide[MAX_HEAD_DIM] __attribute__((aligned(16)));
    for (u32 d = 0; d < head_dim; d += 8) wasm_v128_store(wide + d, wasm_i16x8_load8x8(q + d));
    f32 *scores = (f32 *)b[4] + row * max_seq + start;
    v128 peak4 = f4(0.0f);
    for (u32 j = 0; j < count; j += 4) {
      v128 total = f4(0.0f);
      for (u32 g = 0; g < groups; g++) {
        const u32 at = cached + j * stride + g;
        const i8 *k = (const i8 *)b[2] + 32 * at;
        const f32 *ks = (const f32 *)b[3] + at;
        const i16 *w = wide + 32 * g;
        v128 two = pairs(dots_of_32(k, w), dots_of_32(k + 32 * stride, w));
        KEEP(two);
        const v128 dots = pairs(two, pairs(dots_of_32(k + 64 * stride, w), dots_of_32(k + 96 * stride, w)));
        const v128 scales = wasm_f32x4_make(ks[0], ks[stride], ks[2 * stride], ks[3 * stride]);
        total = add(total, mul(wasm_f32x4_convert_i32x4(dots), mul(f4(qs[g]), scales)));
      }
      total = mul(total, scale);
      if (j + 4 <= count) {
        wasm_v128_store(scores + j, total);
        peak4 = j ? pick(total, peak4, wasm_f32x4_gt(total, peak4)) : total;
        continue;
      }
      f32 rest[4] __attribute__((aligned(16)));
      wasm_v128_store(rest, total);
      for (u32 i = 0; j + i < count; i++) scores[j + i] = rest[i];
    }
    f32 peaks[4] __attribute__((aligned(16)));
    wasm_v128_store(peaks, peak4);
    const u32 whole = count / 4 * 4;
    f32 peak = whole ? peaks[0] : scores[0];
    for (u32 i = 1; whole && i < 4; i++) peak = peaks[i] > peak ? peaks[i] : peak;
    for (u32 j = whole; j < count; j++) peak = scores[j] > peak ? scores[j] : peak;
    ((f32 *)b[5])[row * ((max_seq + BLOCK - 1) / BLOCK) + part.block] = peak;
  }
}

// exp(scores - peak), and their sums, one by one, of n_heads heads.
static inline __attribute__((always_inline)) void weigh(
    const u32 n_heads, const f32 *scores, u32 stride, u32 count, const f32 *peak, f32 p[][BLOCK], f32 *masses,
    u32 mass_stride) {
  for (u32 h = 0; h < n_heads; h++) {
    // Behind the last one lies what a pass before has left.
    for (u32 j = 0; j < count; j += 4) wasm_v128_store(p[h] + j, exp4(sub(load(scores + h * stride + j), f4(peak[h]))));
  }
  f32 mass[HEADS_AT_ONCE] = {0.0f};
  for (u32 j = 0; j < count; j++) {
    UNROLL for (u32 h = 0; h < n_heads; h++) mass[h] = mass[h] + p[h][j];
  }
  for (u32 h = 0; h < n_heads; h++) masses[h * mass_stride] = mass[h];
}

// Eight elements of a block's values for n_heads heads: their sums stay in registers while the positions go by.
static inline __attribute__((always_inline)) void sum_values(
    const u32 n_heads, const f32 w[][BLOCK], const i8 *v, u32 stride, u32 count, f32 *out, u32 out_stride) {
  v128 acc[HEADS_AT_ONCE][2];
  for (u32 h = 0; h < n_heads; h++) {
    for (u32 i = 0; i < 2; i++) acc[h][i] = f4(0.0f);
  }
#pragma clang loop unroll(disable)
  for (u32 j = 0; j < count; j++) {
    const v128 low = wasm_i16x8_load8x8(v);
    const v128 value[2] = {wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(low)),
                           wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(low))};
    UNROLL for (u32 h = 0; h < n_heads; h++) {
      const v128 weight = wasm_v128_load32_splat(w[h] + j);
      UNROLL for (u32 i = 0; i < 2; i++) acc[h][i] = add(acc[h][i], mul(weight, value[i]));
    }
    v += 32 * stride;
  }
  for (u32 h = 0; h < n_heads; h++) {
    for (u32 i = 0; i < 2; i++) wasm_v128_store(out + h * out_stride + 4 * i, acc[h][i]);
  }
}

// One block's values for n_heads heads, the first of which has row `row`.
static inline __attribute__((always_inline)) void block_values(
    const u32 n_heads, const u32 *c, const u32 *b, u32 seen, u32 row, const Part part) {
  const u32 n_kv = c[1], head_dim = c[2], groups = head_dim / 32, max_seq = c[3];
  const u32 blocks = (max_seq + BLOCK - 1) / BLOCK, start = part.block * BLOCK;
  const u32 count = seen - start < BLOCK ? seen - start : BLOCK, stride = n_kv * groups;
  const u32 cached = (max_seq + start) * stride + part.kv_head * groups;
  f32 p[HEADS_AT_ONCE][BLOCK] __attribute__((aligned(16))), w[HEADS_AT_ONCE][BLOCK] __attribute__((aligned(16)));
  f32 peak[HEADS_AT_ONCE];
  for (u32 h = 0; h < n_heads; h++) {
    const f32 *peaks = (const f32 *)b[1] + (row + h) * blocks;
    peak[h] = peaks[0];
    for (u32 block = 1; block * BLOCK < seen; block++) peak[h] = peaks[block] > peak[h] ? peaks[block] : peak[h];
  }
  weigh(n_heads, (const f32 *)b[0] + row * max_seq + start, max_seq, count, peak, p,
        (f32 *)b[4] + row * blocks + part.block, blocks);
  f32 *values = (f32 *)b[5] + (row * blocks + part.block) * head_dim;
  for (u32 g = 0; g < groups; g++) {
    const f32 *vs = (const f32 *)b[3] + cached + g;
    for (u32 j = 0; j < count; j += 4, vs += 4 * stride) {
      const v128 scales = wasm_f32x4_make(vs[0], vs[stride], vs[2 * stride], vs[3 * stride]);
      for (u32 h = 0; h < n_heads; h++) wasm_v128_store(w[h] + j, mul(load(p[h] + j), scales));
    }
    const i8 *v = (const i8 *)b[2] + 32 * (cached + g);
    for (u32 d = 0; d < 32; d += 8) sum_values(n_heads, w, v + d, stride, count, values + 32 * g + d, blocks * head_dim);
  }
}

static __attribute__((noinline)) void values_of_3(const u32 *c, const u32 *b, u32 seen, u32 row, const Part part) {
  block_values(3, c, b, seen, row, part);
}
static __attribute__((noinline)) void values_of_2(const u32 *c, const u32 *b, u32 seen, u32 row, const Part part) {
  block_values(2, c, b, seen, row, part);
}
static __attribute__((noinline)) void values_of_1(const u32 *c, const u32 *b, u32 seen, u32 row, const Part part) {
  block_values(1, c, b, seen, row, part);
}

static void attn_values(const u32 *c, const u32 *b, const Step *step, const Part part) {
  const u32 seen = step->pos + part.t + 1, row = part.t * c[0] + part.first_head;
  if (part.block * BLOCK >= seen) return;
  u32 head = 0;
  for (; part.n_heads - head >= 3; head += 3) values_of_3(c, b, seen, row + head, part);
  if (part.n_heads - head == 2) values_of_2(c, b, seen, row + head, part);
  else if (part.n_heads - head == 1) values_of_1(c, b, seen, row + head, part);
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

#define NO_PART 0xffffffff

#ifdef __wasm_atomics__
// The next part for a thread: of its share while there is one, then of the others', which may have less time or a
// slower core.
static inline u32 claim(Line *lines, u32 thread, u32 n_threads, u32 n_parts, u32 *n_taken) {
  (void)n_taken;
  for (u32 i = 0, owner = thread; i < n_threads; i++, owner = owner + 1 < n_threads ? owner + 1 : 0) {
    const u32 low = n_parts * owner / n_threads, size = n_parts * (owner + 1) / n_threads - low;
    u32 *taken = &lines[1 + owner].count;
    if (i && __atomic_load_n(taken, __ATOMIC_RELAXED) >= size) continue;
    const u32 part = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
    if (part < size) return low + part;
  }
  return NO_PART;
}

// A thread that dies can't say so to the others: they look at `stop` ten times a second, and give up after a while.
#define SLICE_NS 100000000ll
#define PATIENCE_SLICES 300
#define TIMED_OUT 2
// A few times what it takes to go to sleep and be woken: a thread that has nothing else to wait for is back by then.
#define SPINS 200000

// Until all parts of this operation are done, `mine` by this thread: a spin, since the others are usually close, then
// sleep. Whether they are. Nobody waits for a thread that has no part: it may be late.
static inline int meet(Line *lines, u32 n_threads, u32 n_parts, u32 mine, const u32 *stop) {
  if (n_threads == 1) return 1;
  if (mine && __atomic_add_fetch(&lines->count, mine, __ATOMIC_ACQ_REL) == n_parts) {
    __builtin_wasm_memory_atomic_notify((i32 *)&lines->count, n_threads);
    return 1;
  }
  for (u32 spin = 0; spin < SPINS; spin++) {
    if (__atomic_load_n(&lines->count, __ATOMIC_ACQUIRE) == n_parts) return 1;
  }
  for (u32 slices = 0; slices < PATIENCE_SLICES;) {
    const u32 done = __atomic_load_n(&lines->count, __ATOMIC_ACQUIRE);
    if (done == n_parts) return 1;
    if (__atomic_load_n(stop, __ATOMIC_ACQUIRE)) return 0;
    slices += __builtin_wasm_memory_atomic_wait32((i32 *)&lines->count, (i32)done, SLICE_NS) == TIMED_OUT;
  }
  return 0;
}
#else
static inline u32 claim(Line *lines, u32 thread, u32 n_threads, u32 n_parts, u32 *n_taken) {
  (void)lines, (void)thread, (void)n_threads;
  return *n_taken < n_parts ? (*n_taken)++ : NO_PART;
}

static inline int meet(Line *lines, u32 n_threads, u32 n_parts, u32 mine, const u32 *stop) {
  (void)lines, (void)n_threads, (void)n_parts, (void)mine, (void)stop;
  return 1;
}
#endif

#define ROWS_AT_ONCE 32
#define GROUPS_AT_ONCE 8

static u32 parts_of(u32 n, u32 at_once) { return (n + at_once - 1) / at_once; }
static u32 end_of(u32 low, u32 at_once, u32 n) { return low + at_once < n ? low + at_once : n; }

// The number of parts of an operation.
static u32 count_parts(const Op *op, const Step *step) {
  const u32 *c = op->constants, n_tokens = step->n_tokens;
  switch (op->kernel) {
    case EMBED_Q4_0: case EMBED_Q4_1: case EMBED_Q8_0: case RMSNORM_QUANTIZE: return n_tokens;
    case SILU_MUL_QUANTIZE: return n_tokens * parts_of(c[0] / 32, GROUPS_AT_ONCE);
    case MATMUL_Q4_0: case MATMUL_Q4_1: case MATMUL_Q8_0: return parts_of(c[1], ROWS_AT_ONCE);
    case ATTN_SCORES: case ATTN_VALUES: return n_tokens * c[1] * parts_of(step->pos + n_tokens, BLOCK);
    case ATTN_QUANTIZE: return n_tokens * c[0];
    default: return n_tokens * (c[0] + 2 * c[1]);
  }
}

// Whether all of an operation is done, by this thread and the others.
static int run_op(const Op *op, const Step *step, Line *lines, u8 *scratch, u32 thread, u32 n_threads, const u32 *stop) {
  const u32 kernel = op->kernel, *c = op->constants, *b = op->buffers;
  const u32 first = c[5] ? step->n_tokens - 1 : 0, tokens = step->n_tokens - first;  // of a matrix product
  const u32 n_parts = count_parts(op, step);
  Wide wide = {0};
  u32 taken = 0, mine = 0, part;
  for (; (part = claim(lines, thread, n_threads, n_parts, &taken)) != NO_PART; mine++) {
    switch (kernel) {
      case EMBED_Q4_0: case EMBED_Q4_1: case EMBED_Q8_0: embed(kernel, c, b, part); break;
      case RMSNORM_QUANTIZE: rmsnorm_quantize(c, b, part); break;
      case SILU_MUL_QUANTIZE: {
        const u32 groups = c[0] / 32, runs = parts_of(groups, GROUPS_AT_ONCE), low = part % runs * GROUPS_AT_ONCE;
        silu_mul_quantize(c, b, part / runs, low, end_of(low, GROUPS_AT_ONCE, groups));
        break;
      }
      case MATMUL_Q4_0: case MATMUL_Q4_1: case MATMUL_Q8_0: {
        if (!wide.x) {
          wide = wide_of(c, tokens, scratch);
          widen(kernel, c, b, first, tokens, &wide);
        }
        const u32 low = part * ROWS_AT_ONCE;
        matmul(kernel, c, b, &wide, tokens, low, end_of(low, ROWS_AT_ONCE, c[1]));
        break;
      }
      case ATTN_SCORES: attn_scores(c, b, step, part_of(c, step, part)); break;
      case ATTN_VALUES: attn_values(c, b, step, part_of(c, step, part)); break;
      case ATTN_QUANTIZE: attn_quantize(c, b, step, part / c[0], part % c[0]); break;
      default: {
        const u32 units = c[0] + 2 * c[1];
        rope_kv(kernel, c, b, step, part / units, part % units);
      }
    }
  }
  return meet(lines, n_threads, n_parts, mine, stop);
}

// Runs a program: 1, or 0 when another thread did not do its part. `turns`: for each operation 1 + n_threads Lines, all
// zero; `scratch`: `scratch_bytes` for each thread; `stop`: a word that is set when a thread has failed.
u32 EXPORT(forward_run)(u32 ops, u32 n_ops, u32 step, u32 turns, u32 scratch, u32 scratch_bytes, u32 stop, u32 thread,
                        u32 n_threads) {
  for (u32 i = 0; i < n_ops; i++) {
    Line *lines = (Line *)turns + i * (1 + n_threads);
    u8 *own = (u8 *)scratch + thread * scratch_bytes;
    if (!run_op((const Op *)ops + i, (const Step *)step, lines, own, thread, n_threads, (const u32 *)stop)) return 0;
  }
  return 1;
}

// The sha256 of `size` bytes, 32 bytes at `out`.
void EXPORT(forward_digest)(u32 data, u32 size, u32 out) { sha256((const u8 *)data, size, (u8 *)out); }
