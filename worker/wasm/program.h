// A program as forward2/wasm.py writes it.

#pragma once

#include "arithmetic.h"

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
