// The machine's limit: reads every weight of a decode step once and multiplies it with an int8 activation.
//
// y[row] = sum over groups of 32 of (d * xd) * dot(q, x) [+ m * xs]; d, m: f16 of the row and group, xd, xs: f32 of
// the group. Nothing else of a network is done here: no norms, no attention, no order of float sums to keep.
//
// Four rows go together, and the weights lie in the order in which they are read: [rows / 4][groups][4] blocks of 16
// bytes (two 4-bit weights in each) or 32 bytes, beside them [rows / 4][groups][4] scales, q4_1 with its minima in
// four more. Activations are widened to i16 beforehand: x[groups][32].

#include <stdint.h>
#include <wasm_simd128.h>

typedef v128_t v128;
typedef uint32_t u32;

enum { Q4_0, Q4_1, Q8_0 };

static inline v128 add(v128 a, v128 b) { return wasm_f32x4_add(a, b); }
static inline v128 mul(v128 a, v128 b) { return wasm_f32x4_mul(a, b); }

// Four normal f16 as f32.
static inline v128 half4(const uint16_t *h) {
  const v128 v = wasm_u32x4_load16x4(h), magnitude = wasm_v128_and(v, wasm_i32x4_splat(0x7fff));
  const v128 sign = wasm_i32x4_shl(wasm_v128_and(v, wasm_i32x4_splat(0x8000)), 16);
  return wasm_v128_or(wasm_i32x4_add(wasm_i32x4_shl(magnitude, 13), wasm_i32x4_splat(0x38000000)), sign);
}

static inline void unpack(u32 kind, const uint8_t *quants, v128 w[4]) {
  if (kind == Q8_0) {
    const v128 low = wasm_v128_load(quants), high = wasm_v128_load(quants + 16);
    w[0] = wasm_i16x8_shr(wasm_i16x8_shl(low, 8), 8);
    w[1] = wasm_i16x8_shr(low, 8);
    w[2] = wasm_i16x8_shr(wasm_i16x8_shl(high, 8), 8);
    w[3] = wasm_i16x8_shr(high, 8);
  } else {
    const v128 q = wasm_v128_load(quants), mask = wasm_i16x8_splat(15);
    w[0] = wasm_v128_and(q, mask);
    w[1] = wasm_v128_and(wasm_u16x8_shr(q, 4), mask);
    w[2] = wasm_v128_and(wasm_u16x8_shr(q, 8), mask);
    w[3] = wasm_u16x8_shr(q, 12);
  }
}

static inline __attribute__((always_inline)) void product(
    const u32 kind, const uint8_t *quants, const uint16_t *scales, const int16_t *x, const float *xd,
    const float *xs, float *y, u32 rows, u32 groups) {
  const u32 block = kind == Q8_0 ? 32 : 16;
  for (u32 row = 0; row < rows; row += 4) {
    v128 total = wasm_f32x4_splat(0.0f);
    for (u32 g = 0; g < groups; g++) {
      const v128 x0 = wasm_v128_load(x + 32 * g), x1 = wasm_v128_load(x + 32 * g + 8);
      const v128 x2 = wasm_v128_load(x + 32 * g + 16), x3 = wasm_v128_load(x + 32 * g + 24);
      v128 s[4];
#pragma clang loop unroll(full)
      for (u32 i = 0; i < 4; i++, quants += block) {
        v128 w[4];
        unpack(kind, quants, w);
        s[i] = wasm_i32x4_add(wasm_i32x4_add(wasm_i32x4_dot_i16x8(w[0], x0), wasm_i32x4_dot_i16x8(w[1], x1)),
                              wasm_i32x4_add(wasm_i32x4_dot_i16x8(w[2], x2), wasm_i32x4_dot_i16x8(w[3], x3)));
      }
      const v128 ab = wasm_i32x4_add(wasm_i32x4_shuffle(s[0], s[1], 0, 2, 4, 6),
                                     wasm_i32x4_shuffle(s[0], s[1], 1, 3, 5, 7));
      const v128 cd = wasm_i32x4_add(wasm_i32x4_shuffle(s[2], s[3], 0, 2, 4, 6),
                                     wasm_i32x4_shuffle(s[2], s[3], 1, 3, 5, 7));
      const v128 dots = wasm_i32x4_add(wasm_i32x4_shuffle(ab, cd, 0, 2, 4, 6),
                                       wasm_i32x4_shuffle(ab, cd, 1, 3, 5, 7));
      const v128 d = mul(half4(scales), wasm_v128_load32_splat(xd + g));
      total = add(total, mul(wasm_f32x4_convert_i32x4(dots), d));
      scales += 4;
      if (kind == Q4_1) {
        total = add(total, mul(half4(scales), wasm_v128_load32_splat(xs + g)));
        scales += 4;
      }
    }
    wasm_v128_store(y + row, total);
  }
}

// rows: a multiple of 4.
__attribute__((export_name("product"))) void product_of(
    u32 kind, const uint8_t *quants, const uint16_t *scales, const int16_t *x, const float *xd, const float *xs,
    float *y, u32 rows, u32 groups) {
  if (kind == Q4_0) product(Q4_0, quants, scales, x, xd, xs, y, rows, groups);
  else if (kind == Q4_1) product(Q4_1, quants, scales, x, xd, xs, y, rows, groups);
  else product(Q8_0, quants, scales, x, xd, xs, y, rows, groups);
}
