"""The kernel against the Python that it must equal; and, on damaged files, against its bounds."""

from __future__ import annotations

import random
import re
import struct
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import wasmtime
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web import container
from slm2_web.compile.tokenizer import compile_gguf_tokenizer
from slm2_web.errors import FormatError, InputError, ProtocolError
from slm2_web.tokenizer2.kernel import KernelRefused, KernelTokenizer, Status
from slm2_web.tokenizer2.native import WasmtimeKernel, kernel_module, native_tokenizer
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tables import parse
from text_oracles import any_text, fuzz_texts, prose_and_code, smuggling_texts
from tiny_bpe import MARKERS, as_gguf, tiny_metadata

N_FUZZ = 30_000
N_SMUGGLING = 100_000
N_MIXED = 3_000
BATCH = 2_000  # texts of one call
FUEL = 50_000_000  # instructions; far more than any text here takes

# Marks in and out of order, jamo, singletons, characters that are longer in NFC, and what composes with what.
COMPOSING = [
    *"eaoAEO",
    *map(chr, (0x301, 0x300, 0x302, 0x327, 0x328, 0x323, 0x345, 0x5B0, 0x5BC, 0x94D, 0x93C)),
    *map(chr, (0xE9, 0x1EBF, 0x212B, 0x2126, 0x1D160, 0x958, 0xFB1F, 0x9C7, 0x9BE, 0xF900, 0x2F800, 0x1F82)),
    *map(chr, (0x1100, 0x1112, 0x1161, 0x1175, 0x11A7, 0x11A8, 0x11C2, 0xAC00, 0xAC01, 0xD7A3)),
]


def tiny_file(pre: str = "smollm", **arguments: Any) -> bytes:
    """tokenizer.slm2tok of the tiny vocabulary; `qwen2` normalizes."""
    return compile_gguf_tokenizer(as_gguf(tiny_metadata(pre=pre, **arguments)))


@pytest.fixture(scope="module", params=["smollm", "qwen2", "gpt-2", "llama-bpe"])
def tiny(request: pytest.FixtureRequest) -> KernelTokenizer:
    """A tiny tokenizer for each split."""
    return native_tokenizer(tiny_file(request.param))


@pytest.fixture(scope="module")
def smollm2(smollm2_file: bytes) -> KernelTokenizer:
    """SmolLM2's: without normalization, and with bytes that have no token."""
    return native_tokenizer(smollm2_file)


@pytest.fixture(scope="module")
def qwen3(qwen3_file: bytes) -> KernelTokenizer:
    """Qwen3's: with normalization."""
    return native_tokenizer(qwen3_file)


def markers_of(tokenizer: KernelTokenizer) -> list[str]:
    return [tokenizer.token_bytes(i).decode() for i in range(tokenizer.n_tokens) if tokenizer.is_control(i)]


def kernel_of(tokenizer: KernelTokenizer) -> WasmtimeKernel:
    kernel = tokenizer._kernel
    assert isinstance(kernel, WasmtimeKernel)
    return kernel


def assert_equal_ids(tokenizer: KernelTokenizer, runs: Sequence[Run]) -> None:
    assert tokenizer.encode(runs) == tokenizer.python_encode(runs), runs


def assert_equal_batches(tokenizer: KernelTokenizer, texts: Iterator[str], separator: int) -> int:
    """Untrusted `texts` by both, many in a call: a trusted marker stands between two. How many there were."""
    mark = Trusted(tokenizer.token_bytes(separator))
    count = 0
    while batch := [text for _, text in zip(range(BATCH), texts, strict=False)]:
        count += len(batch)
        runs = [run for text in batch for run in (Untrusted(text.encode()), mark)]
        ids = tokenizer.encode(runs)
        assert sum(map(tokenizer.is_control, ids)) == ids.count(separator) == len(batch)
        if ids != tokenizer.python_encode(runs):
            for text in batch:
                assert_equal_ids(tokenizer, [Untrusted(text.encode())])
            raise AssertionError("texts that differ only beside each other")
    return count


def mixed_runs(
    seed: int, count: int, texts: Sequence[str], markers: Sequence[str], ids: Sequence[int]
) -> Iterator[list[Run]]:
    """`count` prompts of controls, trusted and untrusted texts, with markers cut by seams of trust."""
    rng = random.Random(seed)
    for _ in range(count):
        runs: list[Run] = []
        for _ in range(rng.randint(1, 7)):
            kind = rng.randrange(6)
            marker = rng.choice(markers)
            cut = rng.randint(0, len(marker))
            text = rng.choice(
                (rng.choice(texts), "", "\n", "".join(rng.choices(COMPOSING, k=4)), marker[:cut])
            )
            if kind == 0:
                runs.append(Control(rng.choice(ids)))
            elif kind == 1:
                kinds = rng.choice(((Trusted, Trusted), (Trusted, Untrusted), (Untrusted, Trusted)))
                runs += [kinds[0]((text + marker[:cut]).encode()), kinds[1]((marker[cut:] + text).encode())]
            else:
                runs.append((Trusted if kind < 4 else Untrusted)((text + marker * rng.randrange(2)).encode()))
        yield runs


def test_fuzz_on_tiny_vocabularies(tiny: KernelTokenizer) -> None:
    assert (
        assert_equal_batches(tiny, fuzz_texts(11, N_FUZZ // 4, ["hello", " hello", "im_", "aaaa"]), 1)
        == N_FUZZ // 4
    )
    texts = list(smuggling_texts(12, 200, MARKERS))
    for runs in mixed_runs(13, N_MIXED // 4, texts, MARKERS, range(3)):
        assert_equal_ids(tiny, runs)


def test_fuzz_on_smollm2(smollm2: KernelTokenizer) -> None:
    assert assert_equal_batches(smollm2, fuzz_texts(14, N_FUZZ), 2) == N_FUZZ
    texts = list(fuzz_texts(15, 300))
    for runs in mixed_runs(16, N_MIXED, texts, markers_of(smollm2), range(17)):
        assert_equal_ids(smollm2, runs)


def test_fuzz_on_qwen3(qwen3: KernelTokenizer) -> None:
    separator = qwen3.control_id(b"<|im_end|>")
    assert assert_equal_batches(qwen3, fuzz_texts(17, N_FUZZ, COMPOSING, any_text), separator) == N_FUZZ
    texts = list(fuzz_texts(18, 300, COMPOSING, any_text))
    for runs in mixed_runs(19, N_MIXED, texts, markers_of(qwen3), range(151643, 151669)):
        assert_equal_ids(qwen3, runs)


def test_prose_and_code(smollm2: KernelTokenizer, tiny: KernelTokenizer) -> None:
    for tokenizer in (smollm2, tiny):
        for text in prose_and_code():
            assert_equal_ids(tokenizer, [Untrusted(text.encode())])


def test_untrusted_text_never_becomes_a_control_id_and_trusted_text_always(qwen3: KernelTokenizer) -> None:
    kernel = kernel_of(qwen3)
    markers = markers_of(qwen3)
    longest_first = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))
    for first in range(0, N_SMUGGLING, BATCH):
        texts = [text.encode() for text in smuggling_texts(1000 + first, BATCH, markers)]
        spans = array("I")
        end = 0
        for text in texts:
            spans.extend((end, end + len(text), 0))
            end += len(text)
        data = b"".join(texts)
        ids = kernel.encode(data, spans)
        assert not any(map(qwen3.is_control, ids))
        assert qwen3.decode(ids) == data
        # The same bytes, all trusted, have their markers and no others.
        ids = kernel.encode(data, array("I", (0, len(data), 1)))
        assert qwen3.decode(ids) == data
        found = [qwen3.token_bytes(token_id).decode() for token_id in ids if qwen3.is_control(token_id)]
        assert found == longest_first.findall(data.decode())


RUNS = st.lists(
    st.one_of(
        st.builds(Control, st.integers(0, 3)),
        st.builds(
            lambda kind, data: kind(data),
            st.sampled_from((Trusted, Untrusted)),
            st.one_of(
                st.text().map(str.encode),
                st.lists(
                    st.sampled_from([*MARKERS, "<|", "im_", "end|>", "e", "\u0301", "\u0327", " ", "\n", "1"])
                )
                .map("".join)
                .map(str.encode),
                st.binary(max_size=6),
            ),
        ),
    ),
    max_size=6,
)


@settings(max_examples=250, deadline=None)
@given(runs=RUNS)
@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
def test_any_runs_give_the_same_ids_or_the_same_error(pre: str, runs: list[Run]) -> None:
    tokenizer = cached(pre)
    assert outcome(tokenizer.encode, runs) == outcome(tokenizer.python_encode, runs)


_CACHE: dict[str, KernelTokenizer] = {}


def cached(pre: str) -> KernelTokenizer:
    if pre not in _CACHE:
        _CACHE[pre] = native_tokenizer(tiny_file(pre))
    return _CACHE[pre]


def test_offsets_of_what_is_refused(smollm2: KernelTokenizer) -> None:
    kernel = kernel_of(smollm2)
    for text, status, offset in (
        (b"ab\xff", Status.NOT_UTF8, 2),
        (b"a" * 40 + b"\xc3", Status.NOT_UTF8, 40),
        (b"\xe0\x80\x80", Status.NOT_UTF8, 0),
        (b"\xed\xa0\x80", Status.NOT_UTF8, 0),
        (b"ok\xf4\x90\x80\x80", Status.NOT_UTF8, 2),
        (b"\xc3\xa9\xf0\x9f\x98", Status.NOT_UTF8, 2),
        (b"ab\x04c", Status.NO_TOKEN_FOR, 2),
    ):
        with pytest.raises(KernelRefused) as refused:
            kernel.encode(text, array("I", (0, len(text), 0)))
        assert (refused.value.status, refused.value.offset) == (status, offset)


def test_a_character_is_not_joined_across_spans(smollm2: KernelTokenizer) -> None:
    with pytest.raises(KernelRefused) as refused:
        kernel_of(smollm2).encode("é".encode(), array("I", (0, 1, 1, 1, 2, 1)))
    assert (refused.value.status, refused.value.offset) == (Status.NOT_UTF8, 0)


@pytest.mark.parametrize(
    "spans", [(0, 2, 0), (0, 4, 0), (1, 3, 0), (0, 2, 0, 1, 3, 0), (0, 2, 0, 2, 1, 0), (0, 0xFFFFFFFF, 0), ()]
)
def test_spans_that_do_not_tile_the_text_are_refused(
    smollm2: KernelTokenizer, spans: tuple[int, ...]
) -> None:
    with pytest.raises(KernelRefused) as refused:
        kernel_of(smollm2).encode(b"abc", array("I", spans))
    assert refused.value.status is Status.BAD_SPANS


def test_every_valid_and_no_invalid_sequence_of_bytes(tiny: KernelTokenizer) -> None:
    rng = random.Random(21)
    edges = [
        0x00,
        0x41,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xE1,
        0xEC,
        0xED,
    ]
    edges += [0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    for _ in range(2000):
        data = bytes(rng.choices(edges, k=rng.randint(1, 5)))
        data = b"x" * rng.randrange(20) + data
        assert outcome(tiny.encode, [Untrusted(data)]) == outcome(tiny.python_encode, [Untrusted(data)])


def test_normalization_equals_python() -> None:
    tokenizer = cached("qwen2")
    kernel = kernel_of(tokenizer)
    rng = random.Random(22)
    texts = ["".join(rng.choices([*COMPOSING, " ", "x", "你"], k=rng.randint(1, 12))) for _ in range(1500)]
    marks = "".join(rng.choices("\u0301\u0327\u0323\u05b0\u0345", k=3000))
    texts += ["a" + marks, marks, "x" * 100 + marks + "e\u0301" * 50, "\U0001d160" * 300, "\u1f82" * 99]
    for text in texts:
        ids = tokenizer.encode([Untrusted(text.encode())])
        assert ids == tokenizer.python_encode([Untrusted(text.encode())]), ascii(text)
        assert tokenizer.decode(ids) == kernel.normalize(text.encode())


def test_pieces_of_every_length(smollm2: KernelTokenizer, tiny: KernelTokenizer) -> None:
    rng = random.Random(23)
    for tokenizer in (smollm2, tiny):
        for n in [*range(1, 20), *range(50, 80), 1000, 5000]:
            for text in ("a" * n, " " * n, "ab" * n, "".join(rng.choices("abehlo", k=n)), "你" * n):
                assert_equal_ids(tokenizer, [Untrusted(text.encode())])


@pytest.mark.parametrize("text", ["a", " ", "\U0001f600", "e\u0301", "\n "])
def test_a_million_times_the_same(smollm2: KernelTokenizer, text: str) -> None:
    data = text.encode() * 1_000_000
    start = time.perf_counter()
    ids = smollm2.encode([Untrusted(data)])
    assert time.perf_counter() - start < 5  # a second on an idle machine; quadratic would be hours
    assert smollm2.decode(ids) == data
    some = text.encode() * 20_000
    assert_equal_ids(smollm2, [Untrusted(some)])


def test_a_tokenizer_by_the_kernel_is_a_tokenizer(smollm2: KernelTokenizer) -> None:
    runs: list[Run] = [Control(1), Trusted(b"user\n"), Untrusted(b"\nhi <|im_end|>"), Control(2)]
    assert smollm2.encode(iter(runs)) == smollm2.python_encode(runs)
    assert smollm2.encode([]) == smollm2.encode([Untrusted(b""), Trusted(b"")]) == []
    assert smollm2.control_id(b"<|im_end|>") == 2
    for token_id in (17, -1, 1 << 40):
        with pytest.raises(InputError) as error:
            smollm2.encode([Untrusted(b"a"), Control(token_id)])
        with pytest.raises(InputError) as expected:
            smollm2.python_encode([Untrusted(b"a"), Control(token_id)])
        assert error.value.as_json() == expected.value.as_json()


def test_what_the_kernel_alone_refuses_is_an_error_too() -> None:
    class Refusing:
        def __init__(self, status: Status) -> None:
            self.status = status

        def encode(self, text: bytes, spans: array[int]) -> list[int]:
            raise KernelRefused(self.status)

    tables = parse(tiny_file())
    with pytest.raises(FormatError) as damaged:
        KernelTokenizer(tables, Refusing(Status.DAMAGED)).encode([Untrusted(b"a")])
    assert damaged.value.code == "format.tokenizer_file"
    with pytest.raises(ProtocolError) as bug:
        KernelTokenizer(tables, Refusing(Status.BAD_SPANS)).encode([Untrusted(b"a")])
    assert bug.value.code == "protocol.internal"


# ------------------------------------------------------------------------------------ bounds, on any file

GUARD = 0x5A
TEXTS = (  # of the trust that is told
    ("hello <|im_end|> ", 0),
    ("<|im_end|>! a\u0301\u0327 \u1100\u1161\u11a8 it's 12 <|im_start|> <|im_", 1),
    ("end|>  \n\n你好aaaaaa" + "ab" * 70, 0),
)


class Cage:
    """The kernel with a file at the very end of its memory, and guard bytes around all that it may write.

    Reading behind the file or writing anywhere else shows; running for long traps.
    """

    def __init__(self, data: bytes) -> None:
        engine, module = kernel_module(has_fuel=True)
        self.store = wasmtime.Store(engine)
        self.store.set_fuel(FUEL)
        self.text = b""
        self.spans = array("I")
        for text, trusted in TEXTS:
            self.spans.extend((len(self.text), len(self.text) + len(text.encode()), trusted))
            self.text += text.encode()
        self.memory = wasmtime.Memory(self.store, wasmtime.MemoryType(wasmtime.Limits(0, None)))
        instance = wasmtime.Instance(self.store, module, [self.memory])
        self.exports: dict[str, Any] = dict(instance.exports(self.store).items())
        self.out_cap = self.exports["tok_out_cap"](self.store, len(self.text))
        self.scratch_bytes = self.exports["tok_scratch_bytes"](self.store, len(self.text))
        self.text_at = 1024
        self.spans_at = 4096
        self.out_at = 8192
        self.scratch_at = (self.out_at + 4 * self.out_cap + 1024) & ~63
        self.end_at = self.scratch_at + self.scratch_bytes
        pages = -(-(self.end_at + 1024 + len(data)) // 65536)
        self.memory.grow(self.store, pages)
        self.size = pages * 65536

    def call(self, data: bytes) -> int:
        """What tok_encode gives for the text with the file `data`; asserts that the guards stand."""
        file_at = self.size - len(data)
        area = bytearray([GUARD]) * self.size
        area[self.text_at : self.text_at + len(self.text)] = self.text
        area[self.spans_at : self.spans_at + 4 * len(self.spans)] = self.spans.tobytes()
        area[file_at:] = data
        self.memory.write(self.store, area, 0)
        self.store.set_fuel(FUEL)
        arguments = [file_at, len(data), self.text_at, len(self.text), self.spans_at, len(self.spans) // 3]
        arguments += [self.out_at, self.out_cap, self.scratch_at, self.scratch_bytes]
        count = int(self.exports["tok_encode"](self.store, *arguments))
        after = self.memory.read(self.store, 0, self.size)
        written = [(self.out_at, self.out_at + 4 * self.out_cap), (self.scratch_at, self.end_at)]
        for first, last in written:
            area[first:last] = after[first:last]
        assert after == area, "the kernel wrote outside out and scratch"
        self.ids = memoryview(after[self.out_at : self.out_at + 4 * max(count, 0)]).cast("I").tolist()
        return count


def padded(data: bytes) -> bytes:
    """`data` with bytes behind it that its header counts: so its beginning is a multiple of 4 in `Cage`."""
    padding = bytes(-len(data) % 4)
    return data[:16] + struct.pack("<Q", len(data) + len(padding)) + data[24:] + padding


def resigned(data: bytes | bytearray) -> bytes:
    """`data` with the digest that its content has: so that the checks behind the digest are reached."""
    rest = data[56:]
    digest = container._digest(bytes(data[:24]), bytes(rest))
    return bytes(data[:24]) + digest + bytes(rest)


def damaged_files(data: bytes, seed: int) -> Iterator[bytes]:
    """`data` with a byte or a word changed, and shortened.

    Every byte of the header, of the section table and of short sections is changed; of long ones, some.
    """
    rng = random.Random(seed)
    sections = container.read(data)
    places: list[int] = list(range(56 + 24 * len(sections)))
    at = 56 + 24 * len(sections)
    for section in sections.values():
        at += -at % 64
        n = len(section)
        places += range(at, at + n, max(1, n // 150))
        at += n
    for place in places:
        changed = bytearray(data)
        changed[place] ^= rng.randrange(1, 256)
        yield bytes(changed)
        if place % 4 == 0 and place + 4 <= len(data):
            changed = bytearray(data)
            value = rng.choice(
                (0, 1, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, len(data))
            )
            struct.pack_into("<I", changed, place, value)
            yield bytes(changed)
    for _ in range(200):
        yield data[: rng.randrange(len(data))]


@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
def test_no_file_leads_the_kernel_out_of_its_bounds(pre: str) -> None:
    # What parse refuses must do no harm either: it is not asked here.
    data = tiny_file(pre)
    cage = Cage(data)
    counts = [cage.call(changed) for changed in damaged_files(padded(data), 31) if len(changed) % 4 == 0]
    assert sum(count >= 0 for count in counts) > 100
    assert {Status(count) for count in counts if count < 0} >= {Status.DAMAGED, Status.NO_TOKEN_FOR}


@pytest.mark.parametrize("pre", ["smollm", "qwen2"])
def test_python_and_kernel_agree_on_every_file_that_parse_accepts(pre: str) -> None:
    rng = random.Random(32)
    runs = [(Trusted if trusted else Untrusted)(text.encode()) for text, trusted in TEXTS]
    accepted = 0
    files = [changed for changed in damaged_files(tiny_file(pre), 33) if len(changed) > 56]
    for changed in rng.sample(files, 600):
        try:
            tokenizer = native_tokenizer(resigned(changed))
        except FormatError:
            continue
        accepted += 1
        assert outcome(tokenizer.encode, runs) == outcome(tokenizer.python_encode, runs)
    assert accepted > 10


def outcome(encode: Callable[[Sequence[Run]], list[int]], runs: Sequence[Run]) -> object:
    try:
        return encode(runs)
    except InputError as error:
        return error.as_json()


def test_areas_that_are_too_small_are_refused() -> None:
    data = padded(tiny_file())
    cage = Cage(data)
    count = cage.call(data)
    assert count > 0
    enough = cage.scratch_bytes
    for cap in range(count):
        cage.out_cap = cap
        assert cage.call(data) == Status.OUT_TOO_SMALL
    cage.out_cap = count
    statuses = set()
    for scratch_bytes in range(0, enough, 61):
        cage.scratch_bytes = scratch_bytes
        cage.end_at = cage.scratch_at + scratch_bytes
        statuses.add(cage.call(data))
    assert statuses == {Status.SCRATCH_TOO_SMALL, count}
