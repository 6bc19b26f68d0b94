// Attention: RoPE and the cache, then a block of positions by itself: scores, weighed values; then all blocks together.
// The cache of a layer: k of all positions, head by head, then v; quantised by groups of 32.

#pragma once

#include "arithmetic.h"
#include "program.h"

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
  const u32 row = unit < n_heads ? t * n_heads + unit : cached * max_seq + pos;
  for (u32 g = 0; g < groups; g++) {
    v128 value[8];
    for (u32 i = 0; i < 8; i++) {
      const u32 d = 32 * g + 4 * i;
      const f32 *angles = turn + 2 * (d % half_dim);  // cosine and sine of four
      const v128 low = load(angles), high = load(angles + 4);
      const v128 cosines = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), sines = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
      if (unit >= n_heads + n_kv) value[i] = load(v + d);
      else if (d < half_dim) value[i] = sub(mul(load(v + d), cosines), mul(load(v + d + half_dim), sines));
      else value[i] = add(mul(load(v + d), cosines), mul(load(v + d - half_dim), sines));
    }
    i8 *q = unit < n_heads ? (i8 *)b[2] : (i8 *)b[4];
    f32 *scale = unit < n_heads ? (f32 *)b[3] : (f32 *)b[5];
    quantize_group(value, q + (row * groups + g) * 32, scale + row * groups + g, 0);
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
  const u32 n_heads = c[0], head_dim = c[2], groups = head_dim / 32, max_seq = c[3];
  const u32 start = part.block * BLOCK, seen = step->pos + part.t + 1;
  if (start >= seen) return;
  const u32 count = seen - start < BLOCK ? seen - start : BLOCK;
  const v128 scale = f4(bits_f32(c[4]));
  const u32 cached = (part.kv_head * max_seq + start) * groups;
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
        const u32 at = cached + j * groups + g;
        const i8 *k = (const i8 *)b[2] + 32 * at;
        const f32 *ks = (const f32 *)b[3] + at;
        const i16 *w = wide + 32 * g;
        v128 two = pairs(dots_of_32(k, w), dots_of_32(k + 32 * groups, w));
        KEEP(two);
        const v128 dots = pairs(two, pairs(dots_of_32(k + 64 * groups, w), dots_of_32(k + 96 * groups, w)));
        const v128 scales = wasm_f32x4_make(ks[0], ks[groups], ks[2 * groups], ks[3 * groups]);
        total = add(total, mul(wasm_f32x4_convert_i32x4(dots), mul(f4(qs[g]), scales)));
      }
      total = mul(total, scale);
      if (j + 4 <= count) {
        wasm_v128_store(scores + j, total);
        peak4 = j ? wasm_f32x4_pmax(peak4, total) : total;
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
  const u32 count = seen - start < BLOCK ? seen - start : BLOCK;
  const u32 cached = ((n_kv + part.kv_head) * max_seq + start) * groups;
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
    for (u32 j = 0; j < count; j += 4, vs += 4 * groups) {  // behind the last one too: there lies another buffer
      const v128 scales = wasm_f32x4_make(vs[0], vs[groups], vs[2 * groups], vs[3 * groups]);
      for (u32 h = 0; h < n_heads; h++) wasm_v128_store(w[h] + j, mul(load(p[h] + j), scales));
    }
    const i8 *v = (const i8 *)b[2] + 32 * (cached + g);
    for (u32 d = 0; d < 32; d += 8) sum_values(n_heads, w, v + d, groups, count, values + 32 * g + d, blocks * head_dim);
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
