// The products of matrices of 4-bit and 8-bit weights with 8-bit activations.
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
// A product of i16 gives sums of two. One token's are added across afterwards, nine operations for four groups. Of
// several tokens that would be most of the work: there the blocks of four groups are turned, word by word, so that a
// group's sum grows in a lane of its own, and the activations are woven to match. Turning costs eight operations, for
// all tokens of a tile.
//
// A row's groups are padded to fours: what lies behind the row, the next one or another buffer, meets activations of
// zero with scales of zero. Adding the +-0 that comes of it changes no bit, since an accumulator is never -0.

#pragma once

#include "arithmetic.h"
#include "program.h"

// What a thread widens of `tokens` tokens: x[tokens][padded][32], and for each group its scale, scale * sum and, for
// q4_0 alone, 8 * sum.
typedef struct {
  i16 *x;
  f32 *scale, *sum;
  i32 *offset;
  u32 padded, is_woven;
} Wide;

static Wide wide_of(u32 kernel, const u32 *c, u32 tokens, u8 *scratch) {
  const u32 padded = (c[0] / 32 + 3) / 4 * 4;
  Wide wide = {.x = (i16 *)scratch, .padded = padded, .is_woven = kernel != MATMUL_Q8_0 && tokens > 1};
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

// Four rows of four words become its columns.
static inline void turn(v128 a[4]) {
  const v128 low01 = wasm_i32x4_shuffle(a[0], a[1], 0, 4, 1, 5), high01 = wasm_i32x4_shuffle(a[0], a[1], 2, 6, 3, 7);
  const v128 low23 = wasm_i32x4_shuffle(a[2], a[3], 0, 4, 1, 5), high23 = wasm_i32x4_shuffle(a[2], a[3], 2, 6, 3, 7);
  a[0] = wasm_i64x2_shuffle(low01, low23, 0, 2);
  a[1] = wasm_i64x2_shuffle(low01, low23, 1, 3);
  a[2] = wasm_i64x2_shuffle(high01, high23, 0, 2);
  a[3] = wasm_i64x2_shuffle(high01, high23, 1, 3);
}

// Four groups of activations, [group][nibble][word], as [word][nibble][group].
static inline void weave(i16 *x) {
  v128 words[4][4];
  UNROLL for (u32 n = 0; n < 4; n++) {
    UNROLL for (u32 g = 0; g < 4; g++) words[n][g] = load(x + 32 * g + 8 * n);
    turn(words[n]);
  }
  UNROLL for (u32 k = 0; k < 4; k++) {
    UNROLL for (u32 n = 0; n < 4; n++) wasm_v128_store(x + 32 * k + 8 * n, words[n][k]);
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
    for (u32 g = 0; wide->is_woven && g < wide->padded; g += 4) weave(wide->x + (t * wide->padded + g) * 32);
  }
}

// --- what tiles share -----------------------------------------------------------------------------------------

#define BLOCK_BYTES(kernel) ((kernel) == MATMUL_Q8_0 ? 32 : 16)
#define SCALE_BYTES(kernel) ((kernel) == MATMUL_Q4_1 ? 4 : 2)

typedef struct {
  v128 mask[3];
} Nibbles;

static inline Nibbles nibbles(void) {
  return (Nibbles){
      {hidden(wasm_i16x8_splat(0x000f)), hidden(wasm_i16x8_splat(0x00f0)), hidden(wasm_i16x8_splat(0x0f00))}};
}

static inline v128 nibble(v128 words, u32 n, Nibbles k) {
  return n == 3 ? wasm_u16x8_shr(words, 12) : wasm_v128_and(words, k.mask[n]);
}

// A row's scales of four groups, and for q4_1 their minima.
typedef struct {
  v128 d, m;
} Scales;

static inline Scales scales_of(const u32 kernel, const u8 *at, Halves k) {
  const v128 both = kernel == MATMUL_Q4_1 ? load(at) : wasm_u32x4_load16x4(at);
  return (Scales){half4(wasm_i32x4_shl(both, 16), k), half4(both, k)};
}

// What four groups add to their lanes; `at`: the first one's place in `wide`.
static inline v128 term_of(const u32 kernel, v128 dots, Scales scales, Wide wide, u32 at) {
  if (kernel != MATMUL_Q8_0) dots = wasm_i32x4_shr(dots, 8);
  if (kernel == MATMUL_Q4_0) dots = wasm_i32x4_sub(dots, load(wide.offset + at));
  const v128 term = mul(wasm_f32x4_convert_i32x4(dots), mul(scales.d, load(wide.scale + at)));
  return kernel == MATMUL_Q4_1 ? add(term, mul(scales.m, load(wide.sum + at))) : term;
}

// The sum of the eight lanes, in order, becomes or is added to y[t, row].
static inline void put(const u32 *c, const u32 *b, u32 t, u32 row, v128 low, v128 high) {
  f32 total = 0.0f;
  for (int upper = 0; upper < 2; upper++) {
    const v128 a = upper ? high : low;
    total = total + wasm_f32x4_extract_lane(a, 0);
    total = total + wasm_f32x4_extract_lane(a, 1);
    total = total + wasm_f32x4_extract_lane(a, 2);
    total = total + wasm_f32x4_extract_lane(a, 3);
  }
  f32 *place = (f32 *)b[4] + t * c[2] + c[3] + row;
  *place = c[4] ? *place + total : total;
}

// --- a tile of rows and tokens, as they lie -------------------------------------------------------------------

#define MAX_ROWS 2
#define MAX_TOKENS 4

// The k-th eight of a group's weights.
static inline v128 weights(const u32 kernel, const u8 *group, const u32 k, Nibbles masks) {
  return kernel == MATMUL_Q8_0 ? wasm_i16x8_load8x8(group + 8 * k) : nibble(load(group), k, masks);
}

// n_rows rows from `row` on against n_tokens tokens of `wide` from t on.
static inline __attribute__((always_inline)) void plain_tile(
    const u32 kernel, const u32 n_rows, const u32 n_tokens, const u32 *c, const u32 *b, const Wide wide, u32 row,
    u32 t) {
  const u32 groups = c[0] / 32, block_bytes = BLOCK_BYTES(kernel), scale_bytes = SCALE_BYTES(kernel);
  const u8 *quants = (const u8 *)b[2] + row * groups * block_bytes;
  const u8 *scales = (const u8 *)b[3] + row * groups * scale_bytes;
  const Nibbles masks = nibbles();
  const Halves scaling = halves();
  // The accumulators that the next four groups go to, and those of the four after.
  v128 now[MAX_ROWS][MAX_TOKENS], then[MAX_ROWS][MAX_TOKENS];
  for (u32 r = 0; r < n_rows; r++) {
    for (u32 i = 0; i < n_tokens; i++) now[r][i] = then[r][i] = f4(0.0f);
  }
#pragma clang loop unroll(disable)
  for (u32 at = t * wide.padded, end = at + wide.padded; at < end; at += 4) {
    v128 last[MAX_ROWS][MAX_TOKENS], two[MAX_ROWS][MAX_TOKENS], four[MAX_ROWS][MAX_TOKENS];
    UNROLL for (u32 j = 0; j < 4; j++) {
      v128 w[MAX_ROWS][4];
      UNROLL for (u32 r = 0; r < n_rows; r++) {
        const u8 *group = quants + (r * groups + j) * block_bytes;
        UNROLL for (u32 k = 0; k < 4; k++) w[r][k] = weights(kernel, group, k, masks);
      }
      UNROLL for (u32 i = 0; i < n_tokens; i++) {
        const i16 *x = wide.x + (at + i * wide.padded + j) * 32;
        v128 part[MAX_ROWS];
        UNROLL for (u32 k = 0; k < 4; k++) {
          const v128 xk = load(x + 8 * k);
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
      const Scales of_row = scales_of(kernel, scales + r * groups * scale_bytes, scaling);
      UNROLL for (u32 i = 0; i < n_tokens; i++) {
        const v128 total = add(now[r][i], term_of(kernel, four[r][i], of_row, wide, at + i * wide.padded));
        now[r][i] = then[r][i];
        then[r][i] = total;
      }
    }
    quants += 4 * block_bytes;
    scales += 4 * scale_bytes;
  }
  const int swapped = wide.padded / 4 % 2;
  for (u32 r = 0; r < n_rows; r++) {
    for (u32 i = 0; i < n_tokens; i++) {
      put(c, b, t + i, row + r, swapped ? then[r][i] : now[r][i], swapped ? now[r][i] : then[r][i]);
    }
  }
}

// --- a tile of one row and many tokens, woven -----------------------------------------------------------------

#define MOST_TOKENS 8

static inline __attribute__((always_inline)) void woven_tile(
    const u32 kernel, const u32 n_tokens, const u32 *c, const u32 *b, const Wide wide, u32 row, u32 t) {
  const u32 groups = c[0] / 32, block_bytes = BLOCK_BYTES(kernel), scale_bytes = SCALE_BYTES(kernel);
  const u8 *quants = (const u8 *)b[2] + row * groups * block_bytes;
  const u8 *scales = (const u8 *)b[3] + row * groups * scale_bytes;
  const Nibbles masks = nibbles();
  const Halves scaling = halves();
  v128 lanes[2][MOST_TOKENS];  // in memory: too many for registers
  for (u32 i = 0; i < n_tokens; i++) lanes[0][i] = lanes[1][i] = f4(0.0f);
#pragma clang loop unroll(disable)
  for (u32 g = 0; g < wide.padded; g += 4) {
    const u32 at = t * wide.padded + g;
    v128 words[4], sums[MOST_TOKENS];
    UNROLL for (u32 j = 0; j < 4; j++) words[j] = load(quants + j * block_bytes);
    turn(words);
    UNROLL for (u32 k = 0; k < 4; k++) {
      UNROLL for (u32 n = 0; n < 4; n++) {
        const v128 w = nibble(words[k], n, masks);
        UNROLL for (u32 i = 0; i < n_tokens; i++) {
          const v128 product = dot(w, load(wide.x + (at + i * wide.padded + k) * 32 + 8 * n));
          sums[i] = k || n ? plus(sums[i], product) : product;
          KEEP(sums[i]);
        }
      }
    }
    const Scales of_row = scales_of(kernel, scales, scaling);
    v128 *place = lanes[g / 4 % 2];
    UNROLL for (u32 i = 0; i < n_tokens; i++) {
      place[i] = add(place[i], term_of(kernel, sums[i], of_row, wide, at + i * wide.padded));
    }
    quants += 4 * block_bytes;
    scales += 4 * scale_bytes;
  }
  for (u32 i = 0; i < n_tokens; i++) put(c, b, t + i, row, lanes[0][i], lanes[1][i]);
}

// --- a part of a product --------------------------------------------------------------------------------------

// Tiles are functions of their own: compilers of the browsers give up on registers in long ones.
#define TILE(name, tile, ...)                                                                              \
  static __attribute__((noinline)) void name(const u32 *c, const u32 *b, const Wide *wide, u32 row, u32 t) { \
    tile(__VA_ARGS__, c, b, *wide, row, t);                                                                \
  }

// From so many columns on, two rows at once are two streams that lie so far apart that memory is not read ahead: then
// they take half as long again as one after the other.
#define LONG_ROW 768

// Rows low to high of a 4-bit matrix. Of one token, two short rows share the loads of its activations.
#define PRODUCT_OF_4_BITS(kernel)                                                                               \
  TILE(kernel##_TWO, plain_tile, kernel, 2, 1)                                                                  \
  TILE(kernel##_ONE, plain_tile, kernel, 1, 1)                                                                  \
  TILE(kernel##_BY_8, woven_tile, kernel, 8)                                                                    \
  TILE(kernel##_BY_4, woven_tile, kernel, 4)                                                                    \
  TILE(kernel##_BY_1, woven_tile, kernel, 1)                                                                    \
  static void kernel##_ROWS(const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {      \
    if (!wide->is_woven) {                                                                                      \
      u32 row = low;                                                                                            \
      for (; c[0] < LONG_ROW && row + 2 <= high; row += 2) kernel##_TWO(c, b, wide, row, 0);                    \
      for (; row < high; row++) kernel##_ONE(c, b, wide, row, 0);                                               \
      return;                                                                                                   \
    }                                                                                                           \
    for (u32 t = 0, n; t < tokens; t += n) {                                                                    \
      n = tokens - t >= 8 ? 8 : tokens - t >= 4 ? 4 : 1;                                                        \
      for (u32 row = low; row < high; row++) {                                                                  \
        if (n == 8) kernel##_BY_8(c, b, wide, row, t);                                                          \
        else if (n == 4) kernel##_BY_4(c, b, wide, row, t);                                                     \
        else kernel##_BY_1(c, b, wide, row, t);                                                                 \
      }                                                                                                         \
    }                                                                                                           \
  }
PRODUCT_OF_4_BITS(MATMUL_Q4_0)
PRODUCT_OF_4_BITS(MATMUL_Q4_1)

// Rows of 8 bits go by themselves where there is one token: memory is read ahead of one stream better than of two.
TILE(MATMUL_Q8_0_WIDE, plain_tile, MATMUL_Q8_0, 2, 4)
TILE(MATMUL_Q8_0_ONE, plain_tile, MATMUL_Q8_0, 1, 1)

static void MATMUL_Q8_0_ROWS(const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {
  const u32 wide_tokens = tokens / 4 * 4, wide_end = low + (high - low) / 2 * 2;
  for (u32 t = 0; t < wide_tokens; t += 4) {
    for (u32 row = low; row < wide_end; row += 2) MATMUL_Q8_0_WIDE(c, b, wide, row, t);
  }
  for (u32 t = 0; t < tokens; t++) {
    for (u32 row = t < wide_tokens ? wide_end : low; row < high; row++) MATMUL_Q8_0_ONE(c, b, wide, row, t);
  }
}

static void matmul(u32 kernel, const u32 *c, const u32 *b, const Wide *wide, u32 tokens, u32 low, u32 high) {
  if (kernel == MATMUL_Q4_0) MATMUL_Q4_0_ROWS(c, b, wide, tokens, low, high);
  else if (kernel == MATMUL_Q4_1) MATMUL_Q4_1_ROWS(c, b, wide, tokens, low, high);
  else MATMUL_Q8_0_ROWS(c, b, wide, tokens, low, high);
}
