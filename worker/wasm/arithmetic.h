// The arithmetic of forward.c's kernels, four numbers at a time: exactmath.py's, operation for operation.

#pragma once

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

// Keeps the compiler from moving what comes before behind what comes after: it would load all that a tile needs first
// and have no registers left.
#define KEEP(v) __asm__ volatile("" : "+r"(v) : : "memory")

#define UNROLL _Pragma("clang loop unroll(full)")

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

// Of numbers above 0.
static inline v128 recip_above_0(v128 x) {
  v128 y = wasm_i32x4_sub(u4(0x7ef311c3), x);
  for (int i = 0; i < 4; i++) y = mul(y, sub(f4(2.0f), mul(x, y)));
  return y;
}

// Of numbers that are not below 0; 0 gives 0.
static inline v128 recip(v128 x) { return wasm_v128_andnot(recip_above_0(x), wasm_i32x4_eq(x, u4(0))); }

static inline f32 rsqrt(f32 x) {
  f32 half = 0.5f * x, y = bits_f32(0x5f3759df - (f32_bits(x) >> 1));
  for (int i = 0; i < 4; i++) y = y * (1.5f - (half * y) * y);
  return y;
}

// INTEGER_BASE plus the integer next to x, the even one of two that are as near; x lies in -2^22 .. 2^22. The number
// that is added is so large that its last place is 1.
#define INTEGER_BASE 0x4b400000
static inline v128 integer_bits(v128 x) { return add(x, f4(0x1.8p23f)); }

static inline v128 exp4(v128 x) {
  x = wasm_f32x4_pmin(wasm_f32x4_pmax(x, f4(-44.0f)), f4(44.0f));
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
  return mul(y, wasm_i32x4_shl(wasm_i32x4_add(integer_bits(n), u4(127)), 23));  // shifts out what else there is
}

static inline v128 silu(v128 x) { return mul(x, recip_above_0(add(f4(1.0f), exp4(wasm_f32x4_neg(x))))); }

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

// --- sums of products of i16 --------------------------------------------------------------------------------

static inline v128 dot(v128 a, v128 b) { return wasm_i32x4_dot_i16x8(a, b); }
static inline v128 plus(v128 a, v128 b) { return wasm_i32x4_add(a, b); }

// [a0+a1, a2+a3, b0+b1, b2+b3]
static inline v128 pairs(v128 a, v128 b) {
  return plus(wasm_i32x4_shuffle(a, b, 0, 2, 4, 6), wasm_i32x4_shuffle(a, b, 1, 3, 5, 7));
}

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
    word[i] = wasm_i32x4_sub(integer_bits(mul(value[i], inverse)), u4(INTEGER_BASE));
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

// --- RMSNorm -------------------------------------------------------------------------------------------------------

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
