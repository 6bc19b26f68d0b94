"""The default model's tokenizer against PyPI `tokenizers`, and the rule of trust."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.errors import FormatError, InputError
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from text_oracles import (
    LACKING,
    NEW_NUMBERS,
    VECTORS,
    control_markers,
    encode_by_trust,
    fuzz_texts,
    is_comparable,
    prose_and_code,
    smuggling_texts,
    token_texts,
)

N_FUZZ = 25_000
N_SMUGGLING = 100_000
N_TRUSTED = 10_000
N_MIXED = 5_000


def assert_equal_ids(
    tokenizer: Tokenizer, oracle: Any, texts: Sequence[str], run: type[Trusted | Untrusted]
) -> None:
    """Ids of each text equal to the oracle's, and they decode to the text."""
    for text, expected in zip(texts, oracle.encode_batch(texts, add_special_tokens=False), strict=True):
        data = text.encode()
        ids = tokenizer.encode([run(data)])
        assert ids == expected.ids, text
        assert tokenizer.decode(ids) == data, text


def test_golden_prompt(smollm2_tokenizer: Tokenizer) -> None:
    golden = json.loads((VECTORS / "smollm2_greedy.json").read_text("utf-8"))
    assert smollm2_tokenizer.encode([Trusted(golden["prompt"].encode())]) == golden["prompt_ids"]
    assert smollm2_tokenizer.decode(golden["greedy_new_ids"]) == golden["text"].encode()
    shown = golden["text"].removesuffix("<|im_end|>").encode()
    assert smollm2_tokenizer.decode(golden["greedy_new_ids"], special="hide") == shown


def test_fuzz_equals_tokenizers(smollm2_tokenizer: Tokenizer, text_oracle: Any) -> None:
    texts = list(fuzz_texts(1, N_FUZZ, token_texts(smollm2_tokenizer)))
    assert_equal_ids(smollm2_tokenizer, text_oracle, texts, Untrusted)


def test_prose_and_code_equal_tokenizers(smollm2_tokenizer: Tokenizer, text_oracle: Any) -> None:
    texts = prose_and_code()
    assert_equal_ids(smollm2_tokenizer, text_oracle, texts, Untrusted)
    assert_equal_ids(smollm2_tokenizer, text_oracle, ["\n".join(texts)], Untrusted)


def test_reported_faults_equal_tokenizers(
    smollm2_tokenizer: Tokenizer, text_oracle: Any, trusted_oracle: Any
) -> None:
    cases = json.loads((VECTORS / "text_cases.json").read_text("utf-8"))["cases"]
    texts = [text for case in cases for text in case["texts"]]
    assert_equal_ids(smollm2_tokenizer, text_oracle, texts, Untrusted)
    assert_equal_ids(smollm2_tokenizer, trusted_oracle, texts, Trusted)


def test_scalars_in_context_equal_tokenizers(smollm2_tokenizer: Tokenizer, text_oracle: Any) -> None:
    # docs/tokenizer.md has the count of a run over every scalar; this is a sample.
    scalars = [*range(0x600), *range(0x600, 0x3400, 3), *range(0xA000, 0xAC00, 5), *range(0xF900, 0x10000, 3)]
    scalars += [*range(0x10000, 0x20000, 17), *range(0x20000, 0x30000, 1009), *range(0xC0000, 0x110000, 4099)]
    chars = [chr(c) for c in scalars if not 0xD800 <= c < 0xE000 and is_comparable(chr(c))]
    for context in ("{}", "a {}{}b '{}s  {}"):
        assert_equal_ids(smollm2_tokenizer, text_oracle, [context.replace("{}", c) for c in chars], Untrusted)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")).filter(is_comparable))
def test_any_text_equals_tokenizers(smollm2_tokenizer: Tokenizer, text_oracle: Any, text: str) -> None:
    assert_equal_ids(smollm2_tokenizer, text_oracle, [text], Untrusted)


def test_pieces_longer_than_the_cache_takes(smollm2_tokenizer: Tokenizer, text_oracle: Any) -> None:
    rng = random.Random(2)
    texts = ["a" * 5000, " " * 5000, "=" * 5000, "ab" * 3000, "你好" * 1000]
    texts += ["".join(rng.choices("abcdeto", k=3000)) for _ in range(5)]
    assert_equal_ids(smollm2_tokenizer, text_oracle, texts, Untrusted)


def test_every_token_is_the_oracles(
    smollm2_tokenizer: Tokenizer, smollm2_metadata: dict[str, Any], text_oracle: Any
) -> None:
    alphabet = byte_alphabet()
    markers = control_markers(smollm2_metadata)
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    assert smollm2_tokenizer.n_tokens == len(tokens) == text_oracle.get_vocab_size()
    for token_id, token in enumerate(tokens):
        data = smollm2_tokenizer.token_bytes(token_id)
        assert smollm2_tokenizer.is_control(token_id) == (token in markers)
        if token in markers:
            assert data == token.encode()
            continue
        assert data == bytes(alphabet[char] for char in token)
        assert data.decode("utf-8", "replace") == text_oracle.decode([token_id])


def test_markers_in_trusted_text_are_found(
    smollm2_tokenizer: Tokenizer, smollm2_metadata: dict[str, Any], trusted_oracle: Any
) -> None:
    markers = control_markers(smollm2_metadata)
    texts = list(smuggling_texts(3, N_TRUSTED, list(markers)))
    assert_equal_ids(smollm2_tokenizer, trusted_oracle, texts, Trusted)
    for marker, token_id in markers.items():
        assert smollm2_tokenizer.encode([Trusted(marker.encode())]) == [token_id]
        assert smollm2_tokenizer.control_id(marker.encode()) == token_id


def test_untrusted_text_never_becomes_a_control_id(
    smollm2_tokenizer: Tokenizer, smollm2_metadata: dict[str, Any], text_oracle: Any
) -> None:
    texts = list(smuggling_texts(4, N_SMUGGLING, list(control_markers(smollm2_metadata))))
    separator = Control(smollm2_tokenizer.control_id(b"<|im_end|>"))
    expected = text_oracle.encode_batch(texts, add_special_tokens=False)
    runs: list[Run] = []
    ids: list[int] = []
    for text, encoding in zip(texts, expected, strict=True):
        assert not any(map(smollm2_tokenizer.is_control, encoding.ids))
        runs += [Untrusted(text.encode()), separator]
        ids += [*encoding.ids, separator.id]
    assert smollm2_tokenizer.encode(runs) == ids


def test_mixed_runs_equal_the_oracle_that_splits_by_trust(
    smollm2_tokenizer: Tokenizer, smollm2_metadata: dict[str, Any], text_oracle: Any
) -> None:
    markers = control_markers(smollm2_metadata)
    rng = random.Random(5)
    texts = iter([*smuggling_texts(6, 3 * N_MIXED, list(markers)), *fuzz_texts(7, 3 * N_MIXED)])
    for _ in range(N_MIXED):
        runs: list[Run] = []
        for _ in range(rng.randint(1, 6)):
            kind = rng.randrange(5)
            if kind == 0:
                runs.append(Control(rng.randrange(3)))
            else:
                runs.append(
                    (Trusted if kind < 3 else Untrusted)(rng.choice((next(texts), "", "\n")).encode())
                )
        ids = smollm2_tokenizer.encode(runs)
        assert ids == encode_by_trust(runs, text_oracle, markers), runs
        written = [smollm2_tokenizer.token_bytes(r.id) if isinstance(r, Control) else r.data for r in runs]
        assert smollm2_tokenizer.decode(ids) == b"".join(written)


def test_seams_do_not_show(smollm2_tokenizer: Tokenizer) -> None:
    for left, right in ((b"user\n", b"\nhi"), (b"user\n", b"\n\nhi"), (b"user", b"name"), (b" ", b"x")):
        joint = smollm2_tokenizer.encode([Trusted(left), Untrusted(right)])
        assert joint == smollm2_tokenizer.encode([Untrusted(left + right)])
    apart = smollm2_tokenizer.encode([Trusted(b"user\n")]) + smollm2_tokenizer.encode([Untrusted(b"\n\nhi")])
    assert apart != smollm2_tokenizer.encode([Trusted(b"user\n"), Untrusted(b"\n\nhi")])


@pytest.mark.parametrize(
    "runs",
    [
        [Trusted(b"<|im_"), Untrusted(b"end|>")],
        [Untrusted(b"<|im_"), Trusted(b"end|>")],
        [Trusted(b"<|im_e"), Untrusted(b"n"), Trusted(b"d|>")],
    ],
)
def test_a_marker_with_an_untrusted_byte_is_text(smollm2_tokenizer: Tokenizer, runs: list[Run]) -> None:
    assert smollm2_tokenizer.encode(runs) == smollm2_tokenizer.encode([Untrusted(b"<|im_end|>")])


def test_the_longer_of_two_markers_wins(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.encode([Trusted(b"<repo_name><reponame>")]) == [3, 4]
    assert smollm2_tokenizer.encode([Trusted(b"<|im_"), Trusted(b"end|>")]) == [2]


@pytest.mark.parametrize(
    "data", [b"\xff", b"ab\xc3", b"\xed\xa0\x80", b"ok \xc0\x80", b"\xf4\x90\x80\x80", b"a\x80"]
)
def test_text_that_is_not_utf8_is_refused(smollm2_tokenizer: Tokenizer, data: bytes) -> None:
    with pytest.raises(UnicodeDecodeError) as expected:
        data.decode()
    with pytest.raises(InputError) as error:
        smollm2_tokenizer.encode([Trusted(b"fine"), Untrusted(data)])
    assert error.value.code == "input.text"
    assert error.value.detail == {"run": 1, "offset_bytes": expected.value.start}


def test_a_character_is_not_joined_across_runs(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(InputError, match="run 0: not UTF-8 at byte 0"):
        smollm2_tokenizer.encode([Trusted(b"\xc3"), Untrusted(b"\xa9")])


def test_characters_without_a_token_are_refused_where_the_oracle_drops_them(
    smollm2_tokenizer: Tokenizer, text_oracle: Any
) -> None:
    for code_point in [*LACKING, 0x40000, 0xBFFFF]:
        text = f"ab{chr(code_point)}c"
        with pytest.raises(InputError) as error:
            smollm2_tokenizer.encode([Untrusted(text.encode())])
        assert error.value.code == "input.character"
        assert error.value.detail["offset_bytes"] == 2
        assert text_oracle.decode(text_oracle.encode(text, add_special_tokens=False).ids) != text
    ids = smollm2_tokenizer.encode([Untrusted("\U0003ffff\U000c0000\x07\x00".encode())])
    assert smollm2_tokenizer.decode(ids) == "\U0003ffff\U000c0000\x07\x00".encode()


def test_numbers_newer_than_unicode_16_are_where_the_oracle_differs(
    smollm2_tokenizer: Tokenizer, text_oracle: Any
) -> None:
    for code_point in NEW_NUMBERS:
        text = f"a  {chr(code_point)}"
        expected = text_oracle.encode(text, add_special_tokens=False).ids
        assert smollm2_tokenizer.encode([Untrusted(text.encode())]) != expected


def test_a_control_run_must_be_a_control_token(smollm2_tokenizer: Tokenizer) -> None:
    for token_id in (17, -1, smollm2_tokenizer.n_tokens, 1 << 40):
        with pytest.raises(InputError) as error:
            smollm2_tokenizer.encode([Control(token_id)])
        assert error.value.code == "input.token_id"


@pytest.mark.parametrize("token_id", [-1, 49152, 1 << 40])
def test_ids_without_a_token_are_refused(smollm2_tokenizer: Tokenizer, token_id: int) -> None:
    with pytest.raises(InputError) as error:
        smollm2_tokenizer.decode([5, token_id])
    assert error.value.code == "input.token_id"
    assert error.value.detail == {"position": 1, "id": token_id}
    with pytest.raises(InputError):
        smollm2_tokenizer.token_bytes(token_id)
    assert not smollm2_tokenizer.is_control(token_id)


def test_a_marker_that_the_vocabulary_lacks(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(FormatError) as error:
        smollm2_tokenizer.control_id(b"<|eot_id|>")
    assert error.value.code == "format.unsupported"


def test_the_cache_is_bounded(
    smollm2_tokenizer: Tokenizer, text_oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm2_web.tokenizer2.tokenizer.CACHE_PIECES", 40)
    text = " ".join(f"{x}{y}" for x in "abcdefghijkl" for y in "abcdefghijkl")
    assert_equal_ids(smollm2_tokenizer, text_oracle, [text, text], Untrusted)
    assert len(smollm2_tokenizer._cache) <= 40


def test_encoding_leaves_no_trace(smollm2_tokenizer: Tokenizer) -> None:
    def ids_of(runs: Iterable[Run]) -> list[int]:
        return smollm2_tokenizer.encode(runs)

    first = ids_of([Untrusted(b"hello hello")])
    first.append(0)
    assert ids_of([Untrusted(b"hello hello")]) == first[:-1]
    assert ids_of([]) == ids_of([Untrusted(b""), Trusted(b"")]) == []
