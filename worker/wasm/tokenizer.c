// Text -> ids, by the tables of tokenizer.slm2tok where they lie. The Python of py/slm2_web/tokenizer2 says the same
// thing readably and is the oracle for every line here; tables.py describes the file.
//
// Theory of operation
// -------------------
//     text + spans -> [checked] -> stretches between added tokens -> [NFC] -> pieces -> ids
//
// Nothing is allocated and nothing is kept: a call gets the file, the text, a place for the ids and a place to work
// in (`scratch`), and uses no other memory. There is no stack in memory either (the linker gives none) and no global
// that changes, so any number of instances may work on one shared memory at the same time, each with its own text,
// out and scratch.
//
//   1. The file's section table is read anew in each call (it takes less than a microsecond).
//   2. Each span of the text must be UTF-8 by itself, of bytes that the vocabulary has tokens for.
//   3. In each maximal trusted stretch an Aho-Corasick automaton finds the added tokens: the earliest, then the
//      longest. No other code reads a span's trust, and no other code can give an added token's id: `emit_text`
//      refuses one.
//   4. What lies between two added tokens is one string, whoever wrote its parts. It is brought into NFC where the file
//      says so; a quick check shows for nearly all text that there is nothing to do.
//   5. The split automaton cuts the string into pieces, and each piece becomes ids: by one look into the table of
//      pieces that are a single token, else by merges.
//   6. A merge takes the pair of the lowest rank, the leftmost of equal ones. Short pieces search an array for the
//      minimum; long ones keep a heap whose entries are checked when they are popped (merge.py has the argument):
//      O(n log n), whatever the text.
//
// What is trusted
// ---------------
// The caller: that `file`, `text`, `spans`, `out` and `scratch` lie in memory with their sizes, and do not overlap.
// Not the file, although tables.parse has checked it: every index that comes out of a table is compared with the size
// of what it leads into, so that no file can make the kernel read or write anywhere else, or run without end.
// Not the text.

#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;

#define EXPORT(name) __attribute__((export_name(#name)))
// For what is called once for a piece, or more often: an engine compiles a function well once it has been called a
// number of times, and one that took in all of these would run a whole first text in its slow form.
#define HOT __attribute__((noinline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

// What a call gives in place of a count. kernel.py and tokenizer.js have the same list.
enum Status {
  OK = 0,
  OUT_TOO_SMALL = -1,
  SCRATCH_TOO_SMALL = -2,
  NOT_UTF8 = -3,      // out[0]: the offset in text at which the ill-formed sequence begins
  NO_TOKEN_FOR = -4,  // out[0]: the offset in text of a byte that has no token
  DAMAGED = -5,
  BAD_SPANS = -6,  // the spans do not tile the text: a bug of the caller
};

#define NONE 0xFFFFFFFFu

enum {
  MAX_PROBES = 256,    // into the table of words; giving up there changes no id
  SMALL_SYMBOLS = 24,  // pieces up to this length are merged in an array
  SMALL_MARKS = 32,    // combining marks up to this number are sorted by insertion
};

// ---------------------------------------------------------------------------------------------------------- the call

typedef struct {
  u32 id_plus_1, length, depth;
} MarkerEnd;

typedef struct {
  u32 left, rank;
} Slot;

typedef struct {
  u32 first, second, composed;
} Composition;

typedef struct {
  u32 bits, start;
} Record;

// The file's HEAD, in the order of tables.py.
typedef struct {
  u32 n_tokens, n_merges, n_added, normalizer, split, n_states, n_byte_classes, start_state, n_pair_slots, n_word_slots,
      max_word_bytes, n_marker_states, n_marker_classes, n_norm_blocks, n_norm_records, n_norm_decomposed,
      n_norm_compositions;
} Head;

// All that a call knows, at the beginning of its scratch.
typedef struct {
  // The file's sections. Their sizes are those that `head` says; open_file has compared them.
  const Head *head;
  const u32 *offsets;
  const u8 *blob;
  u32 blob_bytes;
  const u32 *byte_ids;
  const u32 *merged;  // by rank
  const u32 *added;  // pairs (id, special), ids ascending
  const u32 *pair_base;
  const Slot *pair_slots;
  const u32 *words;
  const u8 *marker_classes;
  const u16 *marker_goto;
  const MarkerEnd *marker_ends;
  const u8 *split_classes;
  const u16 *split_next;
  const u8 *split_flags;
  const u16 *norm_index;
  const u16 *norm_blocks;
  const Record *norm_records;
  const u32 *norm_decomposed;
  const Composition *norm_compositions;
  u32 first_added, last_added;  // the range of the added ids; empty if there are none
  // The text, the ids so far, and the free part of the scratch.
  const u8 *text;
  u32 done;  // the text up to here is encoded
  u32 *out;
  u32 out_cap, n_out;
  u8 *free, *end;
  // The stretch that is being encoded, after normalization, and how many bytes of it may still be looked at.
  const u8 *span;
  u32 span_bytes;
  u64 steps;
  // merge_small's symbols: ids, and the rank of each with its right neighbour.
  u32 ids[SMALL_SYMBOLS];
  u32 ranks[SMALL_SYMBOLS];
  u32 counts[256];  // sort_marks' buckets
} Job;

static u64 load64(const u8 *p) {
  u64 value;
  __builtin_memcpy(&value, p, 8);
  return value;
}

static u32 load32(const u8 *p) {
  u32 value;
  __builtin_memcpy(&value, p, 4);
  return value;
}

static bool equal(const u8 *a, const u8 *b, u32 n) {
  for (; n >= 8; n -= 8, a += 8, b += 8)
    if (load64(a) != load64(b)) return false;
  for (; n; n--)
    if (*a++ != *b++) return false;
  return true;
}

// `count` items of `size` bytes from the free scratch, aligned to 8; they stay free, as the user knows when it is done.
// Null if there is no room for them after `from`.
static void *room(const Job *job, u8 *from, u64 count, u32 size) {
  u64 start = ((u64)(uintptr_t)from + 7) & ~7ull;
  return start + count * size <= (u64)(uintptr_t)job->end ? (void *)(uintptr_t)start : 0;
}

// ---------------------------------------------------------------------------------------------------------- the file

#define MAGIC 0x4B4F54324D4C5393ull  // "\x93SLM2TOK"

enum { VERSION = 2, ENTRIES_AT = 56, ENTRY_BYTES = 24, N_SECTIONS = 20, N_NORM_INDEX = 0x110000 >> 7, NFC = 1 };

#define ANY_SIZE (~0ull)
#define TAG(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

// Where section `number` lies, or null if it is not the one that is meant, not of `size` bytes, not within the file or
// not aligned for its type. Its entry: tag, alignment u32, offset u64, size u64.
static const u8 *section(const u8 *file, u32 file_bytes, u32 number, u32 tag, u64 size) {
  const u8 *entry = file + ENTRIES_AT + number * ENTRY_BYTES;
  u64 offset = load64(entry + 8), found = load64(entry + 16);
  bool fits = offset <= file_bytes && found <= file_bytes - offset && offset % 4 == 0;
  return load32(entry) == tag && fits && (size == ANY_SIZE || size == found) ? file + offset : 0;
}

static bool all_below(const u8 *values, u32 n, u32 limit) {
  u32 most = 0;
  for (u32 i = 0; i < n; i++)
    if (values[i] > most) most = values[i];
  return most < limit;
}

// Fills in the file's part of `job`. False if the file is no tokenizer.slm2tok of our version, or if a section is not
// where and as large as it must be. What is in the sections is checked where it is used.
static bool open_file(Job *job, const u8 *file, u32 file_bytes) {
  static_assert(sizeof(Head) == 17 * 4, "HEAD is u32[17]");
  if (file_bytes < ENTRIES_AT + N_SECTIONS * ENTRY_BYTES) return false;
  bool is_ours = load64(file) == MAGIC && load32(file + 8) == VERSION;
  if (!is_ours || load32(file + 12) != N_SECTIONS || load64(file + 16) != file_bytes) return false;
  u32 number = 0;
#define SECTION(field, tag, count) \
  if (!(field = (const void *)section(file, file_bytes, number++, tag, (u64)sizeof(*(field)) * (count)))) return false
  SECTION(job->head, TAG('H', 'E', 'A', 'D'), 1);
  const Head *head = job->head;
  if (head->n_byte_classes > 256 || head->n_marker_classes > 256) return false;
  SECTION(job->offsets, TAG('O', 'F', 'F', 'S'), (u64)head->n_tokens + 1);
  job->blob = section(file, file_bytes, number, TAG('B', 'L', 'O', 'B'), ANY_SIZE);
  if (!job->blob) return false;
  job->blob_bytes = load32(file + ENTRIES_AT + number++ * ENTRY_BYTES + 16);
  SECTION(job->byte_ids, TAG('B', 'Y', 'T', 'E'), 256);
  SECTION(job->merged, TAG('M', 'E', 'R', 'G'), head->n_merges);
  SECTION(job->added, TAG('A', 'D', 'D', 'T'), (u64)head->n_added * 2);
  SECTION(job->pair_base, TAG('P', 'B', 'A', 'S'), head->n_tokens);
  SECTION(job->pair_slots, TAG('P', 'S', 'L', 'T'), head->n_pair_slots);
  SECTION(job->words, TAG('W', 'O', 'R', 'D'), head->n_word_slots);
  SECTION(job->marker_classes, TAG('M', 'C', 'L', 'S'), 256);
  SECTION(job->marker_goto, TAG('M', 'G', 'T', 'O'), (u64)head->n_marker_states * head->n_marker_classes);
  SECTION(job->marker_ends, TAG('M', 'E', 'N', 'D'), head->n_marker_states);
  SECTION(job->split_classes, TAG('S', 'C', 'L', 'S'), 256);
  SECTION(job->split_next, TAG('S', 'N', 'X', 'T'), (u64)head->n_states * head->n_byte_classes);
  SECTION(job->split_flags, TAG('S', 'F', 'L', 'G'), head->n_states);
  SECTION(job->norm_index, TAG('N', 'I', 'D', 'X'), head->normalizer == NFC ? N_NORM_INDEX : 0);
  SECTION(job->norm_blocks, TAG('N', 'B', 'L', 'K'), (u64)head->n_norm_blocks * 128);
  SECTION(job->norm_records, TAG('N', 'R', 'E', 'C'), head->n_norm_records);
  SECTION(job->norm_decomposed, TAG('N', 'D', 'E', 'C'), head->n_norm_decomposed);
  SECTION(job->norm_compositions, TAG('N', 'C', 'M', 'P'), head->n_norm_compositions);
#undef SECTION
  bool has_added = head->n_added != 0;
  job->first_added = has_added ? job->added[0] : 1;
  job->last_added = has_added ? job->added[2 * (head->n_added - 1)] : 0;
  return head->n_tokens != 0 && head->n_tokens < NONE && head->n_word_slots != 0 &&
         (head->n_word_slots & (head->n_word_slots - 1)) == 0 && head->start_state < head->n_states &&
         all_below(job->split_classes, 256, head->n_byte_classes) &&
         all_below(job->marker_classes, 256, head->n_marker_classes);
}

// Whether `id` is an added token's.
static bool is_added(const Job *job, u32 id) {
  if (LIKELY(id < job->first_added || id > job->last_added)) return false;
  u32 low = 0, high = job->head->n_added;
  while (low < high) {
    u32 middle = low + (high - low) / 2;
    if (job->added[2 * middle] < id) low = middle + 1;
    else high = middle;
  }
  return low < job->head->n_added && job->added[2 * low] == id;
}

// ----------------------------------------------------------------------------------------------------------- the ids

// Appends an added token's id. Only encode() calls it, for a marker in trusted text.
static i32 emit_marker(Job *job, u32 id) {
  if (UNLIKELY(job->n_out == job->out_cap)) return OUT_TOO_SMALL;
  job->out[job->n_out++] = id;
  return OK;
}

// Appends an id that text became. An added token's is refused, whoever is to blame for the table that gives it.
static i32 emit_text(Job *job, u32 id) {
  if (UNLIKELY(is_added(job, id) || id >= job->head->n_tokens)) return DAMAGED;
  return emit_marker(job, id);
}

// ------------------------------------------------------------------------------------------------------------- UTF-8

// Offset in text[at, end) of the first sequence that is not well-formed, or `end`.
// Source: The Unicode Standard 16.0, section 3.9, table 3-7.
static u32 utf8_error(const u8 *text, u32 at, u32 end) {
  while (at < end) {
    if (end - at >= 16 && !((load64(text + at) | load64(text + at + 8)) & 0x8080808080808080ull)) {
      at += 16;
      continue;
    }
    u32 lead = text[at], more = 0, low = 0x80, high = 0xBF;
    if (lead >= 0x80) {
      if (lead < 0xC2 || lead > 0xF4) return at;
      more = 1 + (lead >= 0xE0) + (lead >= 0xF0);
      if (more >= end - at) return at;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
      if (text[at + 1] < low || text[at + 1] > high) return at;
      if (more >= 2 && (text[at + 2] & 0xC0) != 0x80) return at;
      if (more == 3 && (text[at + 3] & 0xC0) != 0x80) return at;
    }
    at += 1 + more;
  }
  return end;
}

// Bytes of the character that `lead` opens, in well-formed text.
static u32 character_bytes(u8 lead) { return 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0); }

// The code point at `p`, in well-formed text.
static u32 code_point(const u8 *p) {
  u32 lead = p[0];
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (lead & 0x1F) << 6 | (p[1] & 0x3F);
  if (lead < 0xF0) return (lead & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3F);
  return (lead & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3F);
}

// Writes the UTF-8 of `value` at `to`; gives the place after it.
static u8 *put_code_point(u8 *to, u32 value) {
  if (value < 0x80) {
    *to++ = value;
    return to;
  }
  if (value < 0x800) {
    *to++ = 0xC0 | value >> 6;
  } else {
    if (value < 0x10000) {
      *to++ = 0xE0 | value >> 12;
    } else {
      *to++ = 0xF0 | value >> 18;
      *to++ = 0x80 | (value >> 12 & 0x3F);
    }
    *to++ = 0x80 | (value >> 6 & 0x3F);
  }
  *to++ = 0x80 | (value & 0x3F);
  return to;
}

// OK if the spans tile the text, each is UTF-8 by itself, and each of its bytes has a token.
static i32 check_text(Job *job, u32 text_bytes, const u32 *spans, u32 n_spans) {
  u32 unknown = 0;
  for (u32 byte = 0; byte < 256; byte++) unknown += job->byte_ids[byte] == NONE;
  u32 at = 0;
  for (u32 i = 0; i < n_spans; i++) {
    u32 start = spans[3 * i], end = spans[3 * i + 1];
    if (start != at || end < start || end > text_bytes) return BAD_SPANS;
    u32 error = utf8_error(job->text, start, end);
    if (error != end) {
      job->out[0] = error;
      return NOT_UTF8;
    }
    if (unknown) {
      for (; at < end; at++) {
        if (job->byte_ids[job->text[at]] == NONE) {
          job->out[0] = at;
          return NO_TOKEN_FOR;
        }
      }
    }
    at = end;
  }
  return at == text_bytes ? OK : BAD_SPANS;
}

// Looks at each byte of a text: three times at most for the patterns that the compiler knows (split.py). A file whose
// automaton needs more than this is damaged; without the limit it could take time quadratic in the text's length.
enum { MAX_LOOKS = 8 };

// Starts on the pieces of `n` bytes at `span`.
static void begin_span(Job *job, const u8 *span, u32 n) {
  job->span = span;
  job->span_bytes = n;
  job->steps = (u64)n * MAX_LOOKS;
}

// --------------------------------------------------------------------------------------------------------------- NFC
//
// A character is *safe* if its quick check is Yes and it is a starter: nothing before it can reach it. The text is
// unchanged up to the first character that is not quick, or whose class is lower than the one before; what must be
// made anew begins at the last safe character before that one, and ends before the next.
//
// Source: UAX #15; the Unicode Standard, sections 3.11 and 3.12.

enum { CLASS_MASK = 0xFF, NOT_QUICK = 0x100, CLASS_SHIFT = 24, CODE_POINT_MASK = 0x1FFFFF };
enum { L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, S_BASE = 0xAC00, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };

// The record of a code point; null stands for record 0, and for what a damaged table leads to.
static const Record *record_of(const Job *job, u32 value) {
  u32 block = job->norm_index[value >> 7];
  if (UNLIKELY(block >= job->head->n_norm_blocks)) return 0;
  u32 record = job->norm_blocks[block * 128 + (value & 127)];
  return record != 0 && record < job->head->n_norm_records ? job->norm_records + record : 0;
}

// What first and second compose to, or NONE.
static u32 composed(const Job *job, u32 first, u32 second) {
  if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
    return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
  if (first - S_BASE < L_COUNT * V_COUNT * T_COUNT && (first - S_BASE) % T_COUNT == 0 &&
      second - T_BASE - 1 < T_COUNT - 1)
    return first + (second - T_BASE);
  u64 wanted = (u64)first << 32 | second;
  u32 low = 0, high = job->head->n_norm_compositions;
  while (low < high) {
    u32 middle = low + (high - low) / 2;
    const Composition *row = job->norm_compositions + middle;
    u64 found = (u64)row->first << 32 | row->second;
    if (found == wanted) return row->composed <= 0x10FFFF ? row->composed : NONE;
    if (found < wanted) low = middle + 1;
    else high = middle;
  }
  return NONE;
}

// Sorts `n` marks by their class, stably. `spare` has room for as many.
static void sort_marks(Job *job, u32 *marks, u32 n, u32 *spare) {
  if (n <= SMALL_MARKS) {
    for (u32 i = 1; i < n; i++) {
      u32 mark = marks[i], j = i;
      for (; j && marks[j - 1] >> CLASS_SHIFT > mark >> CLASS_SHIFT; j--) marks[j] = marks[j - 1];
      marks[j] = mark;
    }
    return;
  }
  u32 *counts = job->counts;
  for (u32 i = 0; i < 256; i++) counts[i] = 0;
  for (u32 i = 0; i < n; i++) counts[marks[i] >> CLASS_SHIFT]++;
  for (u32 i = 0, sum = 0; i < 256; i++) {
    u32 count = counts[i];
    counts[i] = sum;
    sum += count;
  }
  for (u32 i = 0; i < n; i++) spare[counts[marks[i] >> CLASS_SHIFT]++] = marks[i];
  for (u32 i = 0; i < n; i++) marks[i] = spare[i];
}

// The canonical decomposition of text[at, stop) at `points`, each code point with its class above it. Gives their
// number, or NONE if they do not fit before the scratch's end.
static u32 decompose(const Job *job, u32 at, u32 stop, u32 *points) {
  u32 n = 0, cap = ((u32)(uintptr_t)job->end - (u32)(uintptr_t)points) / 4;
  while (at < stop) {
    u32 value = code_point(job->text + at);
    at += character_bytes(job->text[at]);
    const Record *record = record_of(job, value);
    u32 length = record ? record->bits >> 16 & 0xFF : 0;
    if (cap - n < length + 3) return NONE;
    if (value - S_BASE < L_COUNT * V_COUNT * T_COUNT) {
      u32 syllable = value - S_BASE;
      points[n++] = L_BASE + syllable / (V_COUNT * T_COUNT);
      points[n++] = V_BASE + syllable / T_COUNT % V_COUNT;
      if (syllable % T_COUNT) points[n++] = T_BASE + syllable % T_COUNT;
    } else if (length) {
      u32 start = record->start, n_all = job->head->n_norm_decomposed;
      if (start > n_all || length > n_all - start) return NONE;
      for (u32 i = 0; i < length; i++) {
        u32 part = job->norm_decomposed[start + i] & CODE_POINT_MASK;
        if (part > 0x10FFFF) return NONE;
        const Record *part_record = record_of(job, part);
        points[n++] = part | (part_record ? part_record->bits & CLASS_MASK : 0) << CLASS_SHIFT;
      }
    } else {
      points[n++] = value | (record ? record->bits & CLASS_MASK : 0) << CLASS_SHIFT;
    }
  }
  return n;
}

// The NFC of text[at, stop), written at `to`: the place after it, or null if the scratch is too small.
static u8 *compose(Job *job, u32 at, u32 stop, u8 *to) {
  u8 *limit = room(job, to, (u64)(stop - at) * 3, 1);  // of what is written; the decomposition stands behind it
  u32 *points = limit ? room(job, limit + (stop - at) * 3, 0, 4) : 0;
  if (!points) return 0;
  u32 n = decompose(job, at, stop, points);
  if (n == NONE) return 0;
  for (u32 i = 0; i < n; i++) {
    u32 first = i;
    while (i < n && points[i] >> CLASS_SHIFT) i++;
    u32 *spare = room(job, (u8 *)(points + n), i - first, 4);
    if (!spare) return 0;
    sort_marks(job, points + first, i - first, spare);
  }
  // Each character is joined to the last starter before it, if nothing of its class or higher lies between.
  u32 kept = 0, starter = NONE, last_class = 0;
  for (u32 i = 0; i < n; i++) {
    u32 value = points[i] & CODE_POINT_MASK, class = points[i] >> CLASS_SHIFT;
    if (starter != NONE && (starter + 1 == kept || last_class < class)) {
      u32 joined = composed(job, points[starter], value);
      if (joined != NONE) {
        points[starter] = joined;
        continue;
      }
    }
    if (class == 0) starter = kept;
    last_class = class;
    points[kept++] = value;
  }
  for (u32 i = 0; i < kept; i++) {
    if (to + 4 > (u8 *)points) return 0;
    to = put_code_point(to, points[i]);
  }
  return to;
}

// Starts on the pieces of the NFC of text[begin, end) (of that text as it stands, where the file does not normalize),
// and takes from the free scratch what it needs.
static i32 normalize(Job *job, u32 begin, u32 end) {
  const u8 *text = job->text;
  begin_span(job, text + begin, end - begin);
  if (job->head->normalizer != NFC) return OK;
  u8 *to = job->free;
  u32 at = begin, done = begin, safe = begin, last_class = 0;
  while (at < end) {
    // Nothing below U+0300 is ever anything but safe.
    if (end - at >= 8 && !(load64(text + at) & 0x8080808080808080ull)) {
      at += 8;
      safe = at - 1;
      last_class = 0;
      continue;
    }
    u32 next = at + character_bytes(text[at]);
    const Record *record = text[at] < 0xCC ? 0 : record_of(job, code_point(text + at));
    u32 class = record ? record->bits & CLASS_MASK : 0;
    bool quick = !record || !(record->bits & NOT_QUICK);
    if (LIKELY(quick && (class == 0 || class >= last_class))) {
      if (class == 0) safe = at;
      last_class = class;
      at = next;
      continue;
    }
    for (; next < end; next += character_bytes(text[next])) {
      const Record *following = record_of(job, code_point(text + next));
      if (!following || !(following->bits & (NOT_QUICK | CLASS_MASK))) break;
    }
    if (!room(job, to, safe - done, 1)) return SCRATCH_TOO_SMALL;
    __builtin_memcpy(to, text + done, safe - done);
    to = compose(job, safe, next, to + (safe - done));
    if (!to) return SCRATCH_TOO_SMALL;
    done = at = safe = next;
    last_class = 0;
  }
  if (done == begin) return OK;
  if (!room(job, to, end - done, 1)) return SCRATCH_TOO_SMALL;
  __builtin_memcpy(to, text + done, end - done);
  to += end - done;
  begin_span(job, job->free, (u32)(to - job->free));
  job->free = to;
  return OK;
}

// --------------------------------------------------------------------------------------------------------- the split

enum { ACCEPT = 1, ACCEPT_BEFORE = 2, ACCEPT_AT_END = 4 };

// Where the piece that begins at span[at] ends: the last match on the automaton's way, or one character. NONE if the
// automaton has looked at too many bytes.
HOT static u32 piece_end(Job *job, u32 at) {
  const u8 *span = job->span, *classes = job->split_classes, *flags = job->split_flags;
  const u16 *next = job->split_next;
  const u32 n = job->span_bytes, n_classes = job->head->n_byte_classes, n_states = job->head->n_states;
  u32 begin = at, found = at, character = at, state = job->head->start_state;
  for (;;) {
    if (UNLIKELY(at == n)) {
      if (flags[state] & ACCEPT_AT_END) found = n;
      break;
    }
    u32 byte = span[at];
    if ((byte & 0xC0) != 0x80) character = at;
    state = next[state * n_classes + classes[byte]];
    if (state == 0 || UNLIKELY(state >= n_states)) break;
    at++;
    u32 flag = flags[state];
    if (flag & ACCEPT) found = at;
    else if (flag & ACCEPT_BEFORE) found = character;
  }
  if (UNLIKELY(at - begin > job->steps)) return NONE;
  job->steps -= at - begin;
  if (LIKELY(found > begin)) return found;
  found = begin + character_bytes(span[begin]);
  return found < n ? found : n;
}

// -------------------------------------------------------------------------------------------------------- the merges

// The rank of a pair, or NONE. left, right: below n_tokens.
static u32 rank_of(const Job *job, u32 left, u32 right) {
  u32 base = job->pair_base[left], n_slots = job->head->n_pair_slots, slot = base + right;
  if (slot >= n_slots) slot -= n_slots;  // the array wraps around
  if (base == NONE || UNLIKELY(slot >= n_slots) || job->pair_slots[slot].left != left) return NONE;
  u32 rank = job->pair_slots[slot].rank;
  return LIKELY(rank < job->head->n_merges) ? rank : NONE;
}

// The single token that the piece is, or NONE if the table does not know one.
HOT static u32 word_of(const Job *job, const u8 *piece, u32 n) {
  if (n > job->head->max_word_bytes) return NONE;
  u32 hash = 0x811C9DC5u;
  for (u32 i = 0; i < n; i++) hash = (hash ^ piece[i]) * 0x01000193u;
  u32 mask = job->head->n_word_slots - 1;
  for (u32 probe = 0; probe < MAX_PROBES; probe++) {
    u32 id = job->words[(hash + probe) & mask] - 1;
    if (id >= job->head->n_tokens) return NONE;  // an empty slot, or a damaged one
    u32 start = job->offsets[id], end = job->offsets[id + 1];
    if (end - start == n && start <= job->blob_bytes && n <= job->blob_bytes - start &&
        equal(job->blob + start, piece, n))
      return id;
  }
  return NONE;
}

// Sets ids to those of the piece's bytes. False if there is none for one: only what normalization made can have such.
static bool byte_ids_of(const Job *job, const u8 *piece, u32 n, u32 *ids) {
  u32 most = 0;
  for (u32 i = 0; i < n; i++) {
    ids[i] = job->byte_ids[piece[i]];
    if (ids[i] > most) most = ids[i];
  }
  return most < job->head->n_tokens;
}

// Merges a piece of at most SMALL_SYMBOLS bytes, and appends its ids: the minimum of an array, again and again.
HOT static i32 merge_small(Job *job, const u8 *piece, u32 n) {
  u32 *ids = job->ids, *ranks = job->ranks;
  if (!byte_ids_of(job, piece, n, ids)) return DAMAGED;
  for (u32 i = 0; i + 1 < n; i++) ranks[i] = rank_of(job, ids[i], ids[i + 1]);
  ranks[n - 1] = NONE;
  for (;;) {
    u32 best = NONE;
    for (u32 i = 0; i < n; i++) best = ranks[i] < best ? ranks[i] : best;
    if (best == NONE) break;
    u32 at = 0;
    while (ranks[at] != best) at++;
    u32 merged = job->merged[best];
    if (UNLIKELY(merged >= job->head->n_tokens)) return DAMAGED;
    n--;
    ids[at] = merged;
    for (u32 i = at + 1; i < n; i++) {
      ids[i] = ids[i + 1];
      ranks[i] = ranks[i + 1];
    }
    ranks[at] = at + 1 < n ? rank_of(job, merged, ids[at + 1]) : NONE;
    if (at) ranks[at - 1] = rank_of(job, ids[at - 1], merged);
  }
  for (u32 i = 0; i < n; i++) {
    i32 status = emit_text(job, ids[i]);
    if (UNLIKELY(status)) return status;
  }
  return OK;
}

// Lets `key` sink from `hole` to its place in a binary heap of `n` keys, the least on top.
HOT static void sink(u64 *heap, u32 n, u32 hole, u64 key) {
  for (;;) {
    u32 child = 2 * hole + 1;
    if (child >= n) break;
    if (child + 1 < n && heap[child + 1] < heap[child]) child++;
    if (heap[child] >= key) break;
    heap[hole] = heap[child];
    hole = child;
  }
  heap[hole] = key;
}

// Lets `key` rise from `hole`.
HOT static void rise(u64 *heap, u32 hole, u64 key) {
  while (hole) {
    u32 parent = (hole - 1) / 2;
    if (heap[parent] <= key) break;
    heap[hole] = heap[parent];
    hole = parent;
  }
  heap[hole] = key;
}

// Merges a piece of any length, and appends its ids. As merge.py: the symbols form a doubly linked list over their
// first positions, and a heap holds a key rank << 32 | position for each adjacent pair that has, or had, a rank. A
// key is stale when its pair is gone, which shows when it is popped. A merge pops one key and pushes at most two, and
// there are fewer than n of them, so there are never 2 n keys.
HOT static i32 merge_large(Job *job, const u8 *piece, u32 n) {
  u64 *heap = room(job, job->free, n, 2 * sizeof(u64) + 3 * sizeof(u32));
  if (!heap) return SCRATCH_TOO_SMALL;
  u32 *ids = (u32 *)(heap + 2 * (u64)n), *following = ids + n, *previous = following + n;
  if (!byte_ids_of(job, piece, n, ids)) return DAMAGED;
  u32 n_keys = 0;
  for (u32 i = 0; i < n; i++) {
    following[i] = i + 1;
    previous[i] = i - 1;
    u32 rank = i + 1 < n ? rank_of(job, ids[i], ids[i + 1]) : NONE;
    if (rank != NONE) heap[n_keys++] = (u64)rank << 32 | i;
  }
  for (u32 i = n_keys / 2; i-- > 0;) sink(heap, n_keys, i, heap[i]);
  while (n_keys) {
    u32 rank = (u32)(heap[0] >> 32), at = (u32)heap[0];
    n_keys--;
    if (n_keys) sink(heap, n_keys, 0, heap[n_keys]);
    u32 right = following[at];
    if (ids[at] == NONE || right == n || rank_of(job, ids[at], ids[right]) != rank) continue;
    u32 merged = job->merged[rank];
    if (UNLIKELY(merged >= job->head->n_tokens)) return DAMAGED;
    u32 beyond = following[right], before = previous[at];
    ids[at] = merged;
    ids[right] = NONE;
    following[at] = beyond;
    if (beyond < n) {
      previous[beyond] = at;
      rank = rank_of(job, merged, ids[beyond]);
      if (rank != NONE) rise(heap, n_keys++, (u64)rank << 32 | at);
    }
    if (before != NONE) {
      rank = rank_of(job, ids[before], merged);
      if (rank != NONE) rise(heap, n_keys++, (u64)rank << 32 | before);
    }
  }
  for (u32 i = 0; i < n; i = following[i]) {
    i32 status = emit_text(job, ids[i]);
    if (UNLIKELY(status)) return status;
  }
  return OK;
}

// --------------------------------------------------------------------------------------------------------- the whole

// Appends the ids of the text that is not yet encoded up to `end`. There is no added token in it.
static i32 encode_stretch(Job *job, u32 end) {
  u8 *free = job->free;
  i32 status = normalize(job, job->done, end);
  for (u32 at = 0; status == OK && at < job->span_bytes;) {
    u32 stop = piece_end(job, at);
    if (UNLIKELY(stop == NONE)) return DAMAGED;
    const u8 *piece = job->span + at;
    u32 n = stop - at, id = word_of(job, piece, n);
    if (LIKELY(id != NONE)) status = emit_text(job, id);
    else if (n <= SMALL_SYMBOLS) status = merge_small(job, piece, n);
    else status = merge_large(job, piece, n);
    at = stop;
  }
  job->free = free;
  job->done = end;
  return status;
}

// Appends the ids of the text up to the last added token in text[start, end), a maximal trusted stretch.
//
// The automaton's state after a byte is the longest beginning of a marker that ends there, and a marker that ends
// there is known with its length. One is held until no marker that starts as early can still be longer: the state's
// depth says so. Then the search goes on behind it, from the root.
static i32 encode_markers(Job *job, u32 start, u32 end) {
  const Head *head = job->head;
  u32 from = start, at = start, state = 0, held_start = 0, held_end = 0, held = 0;  // held: id + 1
  if (head->n_added == 0) return OK;
  for (;;) {
    if (at < end) {
      state = job->marker_goto[state * head->n_marker_classes + job->marker_classes[job->text[at++]]];
      if (UNLIKELY(state >= head->n_marker_states)) return DAMAGED;
      const MarkerEnd *row = job->marker_ends + state;
      if (row->id_plus_1) {
        if (UNLIKELY(row->length == 0 || row->length > at - from || row->id_plus_1 > head->n_tokens)) return DAMAGED;
        if (!held || at - row->length <= held_start) {
          held = row->id_plus_1;
          held_start = at - row->length;
          held_end = at;
        }
      }
      if (!held || row->depth >= at - held_start) continue;
    } else if (!held) {
      return OK;
    }
    i32 status = encode_stretch(job, held_start);
    if (status == OK) status = emit_marker(job, held - 1);
    if (UNLIKELY(status)) return status;
    job->done = from = at = held_end;
    held = state = 0;
  }
}

// The ids of the whole text: their number, or a Status.
static i32 encode(Job *job, u32 text_bytes, const u32 *spans, u32 n_spans) {
  i32 status = check_text(job, text_bytes, spans, n_spans);
  u32 start = 0;  // of the present stretch of equal trust
  bool trusted = false;
  for (u32 i = 0; status == OK && i < n_spans; i++) {
    const u32 *span = spans + 3 * i;
    if (span[0] == span[1] || (span[2] != 0) == trusted) continue;  // an empty span separates nothing
    if (trusted) status = encode_markers(job, start, span[0]);
    start = span[0];
    trusted = !trusted;
  }
  if (status == OK && trusted) status = encode_markers(job, start, text_bytes);
  if (status == OK) status = encode_stretch(job, text_bytes);
  return status == OK ? (i32)job->n_out : status;
}

// ------------------------------------------------------------------------------------------------------- the exports

// A Job at the beginning of the scratch, or null if that is too small.
static Job *job_in(u8 *scratch, u32 scratch_bytes) {
  u32 padding = -(u32)(uintptr_t)scratch & 7;
  if (scratch_bytes < sizeof(Job) + padding) return 0;
  Job *job = (Job *)(scratch + padding);
  job->free = (u8 *)(job + 1);
  job->end = scratch + scratch_bytes;
  job->n_out = 0;
  job->done = 0;
  return job;
}

// Bytes of scratch that are enough for any text of `text_bytes`: NFC makes a text at most three times as long, and
// merge_large takes 28 bytes for each byte of a piece. Much less does for nearly all text. At most FFFFFFFF.
EXPORT(tok_scratch_bytes) u32 tok_scratch_bytes(u32 text_bytes) {
  u64 bytes = sizeof(Job) + 64 + (u64)text_bytes * 3 * (1 + 28);
  return bytes < NONE ? (u32)bytes : NONE;
}

// Ids for which `out` must have room, whatever the text: each has a byte at least. At most FFFFFFFF.
EXPORT(tok_out_cap) u32 tok_out_cap(u32 text_bytes) {
  u64 ids = (u64)text_bytes * 3 + 1;
  return ids < NONE ? (u32)ids : NONE;
}

// The ids of a text. Its spans are triples (start, end, trusted) that tile it. Writes at `out`, which has room for
// `out_cap` (at least 1); gives their number, or a Status.
EXPORT(tok_encode) i32 tok_encode(const u8 *file, u32 file_bytes, const u8 *text, u32 text_bytes, const u32 *spans,
                                  u32 n_spans, u32 *out, u32 out_cap, u8 *scratch, u32 scratch_bytes) {
  Job *job = job_in(scratch, scratch_bytes);
  if (!job) return SCRATCH_TOO_SMALL;
  if (out_cap == 0) return OUT_TOO_SMALL;
  if (!open_file(job, file, file_bytes)) return DAMAGED;
  job->text = text;
  job->out = out;
  job->out_cap = out_cap;
  return encode(job, text_bytes, spans, n_spans);
}

// Where the pieces of a text end, without normalization or search for added tokens: the split alone, for tests and for
// people who want to see it. Writes the offsets at `out`; gives their number, or a Status.
EXPORT(tok_split) i32 tok_split(const u8 *file, u32 file_bytes, const u8 *text, u32 text_bytes, u32 *out, u32 out_cap,
                                u8 *scratch, u32 scratch_bytes) {
  Job *job = job_in(scratch, scratch_bytes);
  if (!job) return SCRATCH_TOO_SMALL;
  if (!open_file(job, file, file_bytes)) return DAMAGED;
  if (utf8_error(text, 0, text_bytes) != text_bytes) return NOT_UTF8;
  begin_span(job, text, text_bytes);
  u32 n = 0;
  for (u32 at = 0; at < text_bytes; n++) {
    if (n == out_cap) return OUT_TOO_SMALL;
    if ((at = piece_end(job, at)) == NONE) return DAMAGED;
    out[n] = at;
  }
  return (i32)n;
}

// A text as the file's normalizer makes it, for the same. Writes its bytes at `out`; gives their number, or a Status.
EXPORT(tok_normalize) i32 tok_normalize(const u8 *file, u32 file_bytes, const u8 *text, u32 text_bytes, u8 *out,
                                        u32 out_cap, u8 *scratch, u32 scratch_bytes) {
  Job *job = job_in(scratch, scratch_bytes);
  if (!job) return SCRATCH_TOO_SMALL;
  if (!open_file(job, file, file_bytes)) return DAMAGED;
  if (utf8_error(text, 0, text_bytes) != text_bytes) return NOT_UTF8;
  job->text = text;
  i32 status = normalize(job, 0, text_bytes);
  if (status != OK) return status;
  if (job->span_bytes > out_cap) return OUT_TOO_SMALL;
  __builtin_memcpy(out, job->span, job->span_bytes);
  return (i32)job->span_bytes;
}
