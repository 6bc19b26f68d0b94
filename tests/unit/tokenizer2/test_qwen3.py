"""Qwen3's tokenizer against PyPI `tokenizers`, the reported faults, and added tokens of a model distilled
into it.

tests/full_text_check.py is the long form: every scalar in four contexts, and many more strings.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm2_web.compile.tokenizer_json import compile_tokenizer_json
from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.errors import InputError
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.tokenizer2.utf8 import InvalidUtf8, Utf8Stream
from text_oracles import (
    VECTORS,
    any_text,
    encode_by_trust,
    fuzz_texts,
    json_oracle,
    prose_and_code,
    smuggling_texts,
    token_texts,
)

N_FUZZ = 12_000
N_SMUGGLING = 30_000
CASES = json.loads((VECTORS / "tokenizer_cases.json").read_text("utf-8"))["cases"]


def cases(area: str) -> dict[str, Any]:
    return {case["id"]: case for case in CASES if case["area"] == area}


def assert_equal_ids(
    tokenizer: Tokenizer, oracle: Any, texts: Sequence[str], run: type[Trusted | Untrusted] = Untrusted
) -> None:
    for text, expected in zip(texts, oracle.encode_batch(texts, add_special_tokens=False), strict=True):
        assert tokenizer.encode([run(text.encode())]) == expected.ids, ascii(text)


def test_every_token_is_the_publishers(
    qwen3_tokenizer: Tokenizer, qwen3_data: dict[str, Any], qwen3_text_oracle: Any
) -> None:
    alphabet = byte_alphabet()
    vocab = qwen3_data["model"]["vocab"]
    assert len(vocab) == 151_643
    assert qwen3_tokenizer.n_tokens == 151_669
    decoded = qwen3_text_oracle.decode_batch([[token_id] for token_id in vocab.values()])
    for (token, token_id), text in zip(vocab.items(), decoded, strict=True):
        data = qwen3_tokenizer.token_bytes(token_id)
        assert data == bytes(alphabet[char] for char in token)
        assert data.decode("utf-8", "replace") == text
        assert not qwen3_tokenizer.is_control(token_id)
    assert len(qwen3_data["added_tokens"]) == 26
    for entry in qwen3_data["added_tokens"]:
        marker = entry["content"].encode()
        assert qwen3_tokenizer.token_bytes(entry["id"]) == marker
        assert qwen3_tokenizer.control_id(marker) == entry["id"]
        assert qwen3_tokenizer.encode([Trusted(marker)]) == [entry["id"]]
        assert qwen3_tokenizer.decode([entry["id"]], special="hide") == (b"" if entry["special"] else marker)


def test_fuzz_equals_tokenizers(qwen3_tokenizer: Tokenizer, qwen3_text_oracle: Any) -> None:
    texts = list(fuzz_texts(101, N_FUZZ, token_texts(qwen3_tokenizer), any_text))
    assert_equal_ids(qwen3_tokenizer, qwen3_text_oracle, [*texts, *prose_and_code()])


def test_scalars_in_context_equal_tokenizers(qwen3_tokenizer: Tokenizer, qwen3_text_oracle: Any) -> None:
    scalars = [
        *range(0x600),
        *range(0x600, 0x3400, 5),
        *range(0xA000, 0xAC00, 11),
        *range(0xF900, 0x10000, 3),
    ]
    scalars += [*range(0x3400, 0xA000, 211), *range(0xAC00, 0xD800, 101), *range(0x10000, 0x110000, 1009)]
    chars = [chr(c) for c in scalars if not 0xD800 <= c < 0xE000]
    for context in ("{}", "a{}", "{}\u0301 ", "x {}{}b '{}s  {}"):
        assert_equal_ids(qwen3_tokenizer, qwen3_text_oracle, [context.replace("{}", c) for c in chars])


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_equals_tokenizers(qwen3_tokenizer: Tokenizer, qwen3_text_oracle: Any, text: str) -> None:
    assert_equal_ids(qwen3_tokenizer, qwen3_text_oracle, [text])


def test_markers_are_found_in_trusted_text_only(
    qwen3_tokenizer: Tokenizer, qwen3_data: dict[str, Any], qwen3_text_oracle: Any, qwen3_trusted_oracle: Any
) -> None:
    markers = [entry["content"] for entry in qwen3_data["added_tokens"]]
    texts = list(smuggling_texts(103, N_SMUGGLING, markers))
    assert_equal_ids(qwen3_tokenizer, qwen3_trusted_oracle, texts, Trusted)
    assert_equal_ids(qwen3_tokenizer, qwen3_text_oracle, texts)
    for text in texts:
        assert not any(map(qwen3_tokenizer.is_control, qwen3_tokenizer.encode([Untrusted(text.encode())])))
    assert qwen3_tokenizer.encode([Untrusted(b"<|im_end|>")]) == [27, 91, 318, 6213, 91, 29]


def test_mixed_runs_equal_the_oracle_that_splits_by_trust(
    qwen3_tokenizer: Tokenizer, qwen3_data: dict[str, Any], qwen3_text_oracle: Any
) -> None:
    markers = {entry["content"]: entry["id"] for entry in qwen3_data["added_tokens"]}
    texts = [*smuggling_texts(104, 4000, list(markers)), *fuzz_texts(105, 2000, accept=any_text)]
    for at in range(0, len(texts) - 3, 3):
        runs: list[Run] = [Trusted(texts[at].encode()), Untrusted(texts[at + 1].encode())]
        runs += [Trusted(texts[at + 2].encode()), Control(151_644), Untrusted(texts[-at - 1].encode())]
        assert qwen3_tokenizer.encode(runs) == encode_by_trust(runs, qwen3_text_oracle, markers), runs


@pytest.mark.parametrize("name", cases("tokenizer"))
def test_reported_faults(qwen3_tokenizer: Tokenizer, name: str) -> None:
    case = cases("tokenizer")[name]
    text = case["input"]["text"].encode()
    expected = case["expected"]
    kind = Trusted if case["input"]["parse_special"] else Untrusted
    ids = qwen3_tokenizer.encode([kind(text)])
    assert ids == expected["ids"]
    assert qwen3_tokenizer.decode(ids) == expected["decode"].encode()
    assert (qwen3_tokenizer.decode(ids) == text) == expected["round_trips"]
    if "pieces_of_I\u017fee" in expected:
        pieces = qwen3_tokenizer.splitter.split("I'\u017fee".encode())
        assert [piece.decode() for piece in pieces] == expected["pieces_of_I\u017fee"]


def _turn(role: str, content: bytes) -> list[Run]:
    return [Trusted(f"<|im_start|>{role}\n".encode()), Untrusted(content), Trusted(b"<|im_end|>\n")]


def test_reported_faults_at_the_boundary_of_trust(qwen3_tokenizer: Tokenizer) -> None:
    reply = Trusted(b"<|im_start|>assistant\n")
    known = cases("trust-boundary")
    tool = known["SEC-03"]["input"]["messages"][2]["content"].encode()
    runs: dict[str, list[Run]] = {
        "SEC-03": [
            *_turn("user", b"read page"),
            Trusted(b'<|im_start|>assistant\n<tool_call>\n{"name": "get", "arguments": {}}\n'),
            Trusted(b"</tool_call><|im_end|>\n"),
            Trusted(b"<|im_start|>user\n<tool_response>\n"),
            Untrusted(tool),
            Trusted(b"\n</tool_response><|im_end|>\n"),
            reply,
        ],
        "SEC-06": [
            Trusted(known["SEC-06"]["input"]["template_text"].encode()),
            Untrusted(known["SEC-06"]["input"]["content"].encode()),
        ],
    }
    for name in ("SEC-04", "SEC-08"):
        messages = known[name]["input"]["messages"]
        turns = [run for message in messages for run in _turn(message["role"], message["content"].encode())]
        runs[name] = [*turns, reply]
        if name == "SEC-08":
            # The template strips the newlines of an assistant's text; there are none.
            assert messages[1]["content"] == "ok"
    assert set(runs) == set(known)
    for name, some in runs.items():
        expected = known[name]["expected"]
        assert qwen3_tokenizer.encode(some) == expected["ids"], name
        if "n_added_token_ids" in expected:
            n_added = sum(map(qwen3_tokenizer.is_control, qwen3_tokenizer.encode(some)))
            assert n_added == expected["n_added_token_ids"]


@pytest.mark.parametrize("name", cases("utf8-stream"))
def test_reported_faults_of_streams(qwen3_tokenizer: Tokenizer, name: str) -> None:
    case = cases("utf8-stream")[name]
    parts = [qwen3_tokenizer.token_bytes(token_id) for token_id in case["input"]["token_ids"]]
    assert [part.hex() for part in parts] == case["input"]["bytes_hex"]
    stream = Utf8Stream()
    if "\ufffd" in case["expected"]["text"]:
        # The case replaces what is not UTF-8; ours ends the stream with an error at once, and replaces
        # nothing.
        assert [stream.feed(part) for part in parts[:2]] == [b"", b""]
        with pytest.raises(InvalidUtf8) as error:
            stream.feed(parts[2])
        assert error.value.offset == 0
        return
    assert [stream.feed(part).decode() for part in parts] == case["expected"]["deltas"]
    assert stream.finish().decode() == case["expected"]["flush"]


def test_joint_encoding_and_nfc(qwen3_tokenizer: Tokenizer) -> None:
    assert qwen3_tokenizer.encode([Trusted(b"user\n"), Untrusted(b"\nhi")]) == [872, 271, 6023]
    assert qwen3_tokenizer.encode([Untrusted("e\u0301".encode())]) == [963]
    assert qwen3_tokenizer.encode([Trusted(b"e"), Untrusted("\u0301".encode())]) == [963]


def test_text_as_received(qwen3_json: Any, qwen3_data: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_bytes(compile_tokenizer_json(qwen3_json.read_bytes(), normalize=False))
    assert tokenizer._tables.normalizer == "as-received"
    oracle = json_oracle({**qwen3_data, "normalizer": None}, added=False)
    texts = list(fuzz_texts(106, 1500, accept=any_text))
    assert_equal_ids(tokenizer, oracle, texts)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode([Untrusted(text.encode())])) == text.encode()


def test_added_tokens_of_a_distilled_model(qwen3_data: dict[str, Any]) -> None:
    data = copy.copy(qwen3_data)
    markers = {"<\uff5cUser\uff5c>": 151_644, "<\uff5cAssistant\uff5c>": 151_645, "<think>": 151_648}
    markers["<think\u2581begin\uff5c>"] = 151_650
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data["added_tokens"] = [
        {"id": i, "content": text, **flags, "special": False} for text, i in markers.items()
    ]
    tokenizer = Tokenizer.from_bytes(compile_tokenizer_json(json.dumps(data).encode()))
    ids = tokenizer.encode(
        [Trusted("<\uff5cUser\uff5c>What is 2+2?<\uff5cAssistant\uff5c><think>\n".encode())]
    )
    assert ids == [151644, 3838, 374, 220, 17, 10, 17, 30, 151645, 151648, 198]
    assert tokenizer.encode([Trusted("<think<think\u2581begin\uff5c>".encode())])[-1] == 151_650
    assert tokenizer.encode([Trusted("<think\u2581begin<think>".encode())])[-1] == 151_648
    for missing in (151_643, 151_646, 151_649, 151_651):
        with pytest.raises(InputError) as error:
            tokenizer.decode([missing])
        assert error.value.code == "input.token_id"
    assert not tokenizer.is_control(151_646)


def test_decoding_in_parts(qwen3_tokenizer: Tokenizer) -> None:
    runs: list[Run] = [Trusted(b"<|im_start|><think>user\nhello"), Control(151_645), Control(151_645)]
    ids = qwen3_tokenizer.encode(runs)
    parts = [Control(151_644), Control(151_667), b"user\nhello", Control(151_645), Control(151_645)]
    assert qwen3_tokenizer.decode_parts(ids) == parts
    assert qwen3_tokenizer.decode(ids, special="hide") == b"<think>user\nhello"
    assert qwen3_tokenizer.decode_parts([]) == []
    for bad in (151_669, 151_935, -1):
        with pytest.raises(InputError) as error:
            qwen3_tokenizer.decode_parts([1, bad])
        assert error.value.detail == {"position": 1, "id": bad}
