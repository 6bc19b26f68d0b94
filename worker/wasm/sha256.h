// SHA-256 (FIPS 180-4) of bytes in memory, for the digests of logits: a thread that has nothing else to do makes them
// while the engine's thread goes on. By itself, hashlib does the same in the same time.

#pragma once

#include <stdint.h>
#include <wasm_simd128.h>

static const uint32_t SHA256_K[64] = {
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
  0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
  0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
  0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
  0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
  0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
  0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
  0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static inline uint32_t sha256_turn(uint32_t x, uint32_t bits) { return x >> bits | x << (32 - bits); }

// One block of 64 bytes into the state. Loops are unrolled whole: a kernel may have no data, so constants are code.
static __attribute__((noinline)) void sha256_block(uint32_t state[8], const uint8_t *block) {
  uint32_t w[16], v[8];
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 8; i++) v[i] = state[i];
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 16; i++) {
    w[i] = __builtin_bswap32(*(const uint32_t *)(block + 4 * i));
  }
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 64; i++) {
    if (i >= 16) {
      const uint32_t a = w[(i + 1) % 16], b = w[(i + 14) % 16];
      w[i % 16] += (sha256_turn(a, 7) ^ sha256_turn(a, 18) ^ a >> 3) + w[(i + 9) % 16] +
                   (sha256_turn(b, 17) ^ sha256_turn(b, 19) ^ b >> 10);
    }
    // a to h of the standard; they move down by one place a round.
    uint32_t *const at[8] = {v + (64 - i) % 8, v + (65 - i) % 8, v + (66 - i) % 8, v + (67 - i) % 8,
                             v + (68 - i) % 8, v + (69 - i) % 8, v + (70 - i) % 8, v + (71 - i) % 8};
    const uint32_t a = *at[0], b = *at[1], c = *at[2], e = *at[4], f = *at[5], g = *at[6];
    const uint32_t t = *at[7] + (sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25)) + (g ^ (e & (f ^ g))) +
                       SHA256_K[i] + w[i % 16];
    *at[3] += t;
    *at[7] = t + (sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22)) + ((a & b) | (c & (a | b)));
  }
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 8; i++) state[i] += v[i];
}

// The digest of `size` bytes, big-endian, into `out`.
static void sha256(const uint8_t *data, uint32_t size, uint8_t out[32]) {
  uint32_t state[8] __attribute__((aligned(16)));
  wasm_v128_store(state, wasm_u32x4_const(0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a));
  wasm_v128_store(state + 4, wasm_u32x4_const(0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19));
  uint8_t last[128] = {0};
  const uint32_t whole = size / 64 * 64, rest = size - whole, end = rest < 56 ? 64 : 128;
  for (uint32_t at = 0; at < whole; at += 64) sha256_block(state, data + at);
  for (uint32_t i = 0; i < rest; i++) last[i] = data[whole + i];
  last[rest] = 0x80;
  for (uint32_t i = 0; i < 5; i++) last[end - 1 - i] = (uint8_t)((uint64_t)size * 8 >> 8 * i);
  for (uint32_t at = 0; at < end; at += 64) sha256_block(state, last + at);
  for (uint32_t i = 0; i < 32; i++) out[i] = (uint8_t)(state[i / 4] >> (24 - i % 4 * 8));
}
