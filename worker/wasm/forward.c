// Forward2 on wasm SIMD: the plan's kernels, with the reference's bits (docs/forward.md, forward2/reference.py).
//
// Theory of operation. Python writes a plan into memory as an array of operations (forward2/wasm.py): a kernel's
// number, its constants, the addresses of its buffers. A pass is one call of `forward_run` in every thread, with
// the same arguments. All threads walk the operations in step: the work of one is cut into parts, each thread takes
// those of its own share, which lie together in memory, then what is left of the others', and none begins the next
// operation before all parts of this one are done. A part's outputs depend on its inputs alone, so neither the number
// of threads nor who takes what can show in a bit; and a thread that comes late is not waited for.
//
// Bits. Without fast-math, C's float operations are the reference's: one correctly rounded operation each, in the
// order written; wasm has no fused multiply-add outside relaxed SIMD, which is not used (its results differ by
// machine). Integer sums are exact in any order. A vector's four lanes are four of the contract's lanes.
//
// Memory is imported. Nothing here allocates, and no global changes: `scratch` gives each thread room of its own.

#include "arithmetic.h"
#include "attention.h"
#include "matmul.h"
#include "program.h"
#include "sha256.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

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

// --- the walk -------------------------------------------------------------------------------------------------

// What the threads share of an operation, zeroed before a pass: a cache line with the number of parts that are done,
// then one for each thread with the number of parts of its share that are taken.
typedef struct {
  u32 count, padding[15];
} Line;

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
          wide = wide_of(kernel, c, tokens, scratch);
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
