"""The encoder of many prompts that differ little: the tokenizer's ids, each text encoded about once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_oracles import hostile
from slm2_web.errors import InputError
from slm2_web.prompt2.assemble import assemble
from slm2_web.prompt2.folding import PART_BYTES, WHOLE_RUNS, FoldingEncoder
from slm2_web.prompt2.request import Evidence, PromptRequest
from slm2_web.template2.spec import Message
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.tables import parse
from slm2_web.tokenizer2.tokenizer import Tokenizer
from unit.prompt2.conftest import Model

kinds = st.sampled_from([Trusted, Untrusted])
texts = st.builds(lambda kind, text: kind(text.encode()), kinds, hostile)
long_stretch = st.lists(texts, max_size=4 * WHOLE_RUNS)


@settings(max_examples=100)
@given(stretches=st.lists(long_stretch, max_size=3), drop=st.integers(0, 4 * WHOLE_RUNS))
def test_equals_the_tokenizer(qwen3_tokenizer: Tokenizer, stretches: list[list[Run]], drop: int) -> None:
    """Also when a prompt of almost the same runs was encoded before."""
    encoder = FoldingEncoder(qwen3_tokenizer)
    control = Control(qwen3_tokenizer.control_id(b"<|im_end|>"))
    runs: list[Run] = [control]
    for stretch in stretches:
        runs += [*stretch, control]
    for given_runs in (runs, runs[: drop + 1] + runs[drop + 2 :], runs[drop:], runs):
        ids = qwen3_tokenizer.encode(given_runs)
        assert encoder.encode(given_runs) == ids
        assert encoder.count(given_runs) == len(ids)


@pytest.mark.parametrize(
    "text", ["x" * 3000, "\u65e5" * 1000, "e\u0301" * 900, "\U0001f600\n" * 700, " " * 2000]
)
def test_long_runs_are_folded_in_parts(qwen3_tokenizer: Tokenizer, text: str) -> None:
    encoder = FoldingEncoder(qwen3_tokenizer)
    for length in (len(text), len(text) - 1, len(text) // 2, PART_BYTES, PART_BYTES + 1, 1):
        content = Untrusted(text[:length].encode())
        runs: list[Run] = [
            Trusted(b"<evidence>\n"),
            content,
            Trusted(b"\n"),
            content,
            Trusted(b"\n"),
            content,
        ]
        assert encoder.encode(runs) == qwen3_tokenizer.encode(runs)


def test_text_that_is_no_utf8_is_refused_as_by_the_tokenizer(smollm2_tokenizer: Tokenizer) -> None:
    for data in (b"\x80" * 3000, b"x" * 700 + b"\xff" + b"x" * 700, b"\xe6\x97" * 900):
        runs: list[Run] = [Untrusted(b"x")] * WHOLE_RUNS
        runs.append(Untrusted(data))
        details = []
        for encode in (FoldingEncoder(smollm2_tokenizer).encode, smollm2_tokenizer.encode):
            with pytest.raises(InputError) as error:
                encode(runs)
            details.append((error.value.code, error.value.detail))
        assert details[0] == details[1]
        assert details[0][0] == "input.text"


class CountingTokenizer(Tokenizer):
    """Counts the bytes that it encodes."""

    encoded_bytes = 0

    def encode_pieces(self, text: bytes, ends: list[int]) -> list[int]:
        self.encoded_bytes += ends[-1] - ends[0] if ends else 0
        return super().encode_pieces(text, ends)


@pytest.mark.parametrize("share", [1.1, 0.9, 0.1, 0.02, 0.006])
def test_the_cost_is_linear(smollm2_file: bytes, smollm2: Model, share: float) -> None:
    """1 MB of history and 200 texts of evidence: all is encoded about once, however much goes."""
    tokenizer = CountingTokenizer(parse(smollm2_file))
    words = b"The quick brown fox jumps over the lazy dog, number %d.\n"
    history: list[Message] = []
    for n in range(500):
        answer = b"".join(words % (n + i) for i in range(35))
        history += [Message("user", words % n), Message("assistant", answer)]
    evidence = tuple(
        Evidence(f"e{n}", n % 7, b"".join(words % (n * i) for i in range(n % 40 + 1))) for n in range(200)
    )
    big = Evidence("big", 9, words % 1 * 2_000)
    question = Message("user", words % 0 * 20)
    request = PromptRequest(b"Be kind.", tuple(history), (question,), 1 << 30, b"12:00", (*evidence, big))
    texts_of_all = [*(message.content for message in (*history, question)), *(e.content for e in evidence)]
    n_bytes = sum(map(len, texts_of_all)) + len(big.content)
    assert n_bytes > 1_300_000
    budget = int(400_000 * share)
    prompt = assemble(smollm2.template, tokenizer, replace(request, budget_tokens=budget))
    passes = {part.in_pass for part in prompt.ledger.parts if part.in_pass}
    assert passes == {1.1: set(), 0.9: {1}, 0.1: {1, 2}, 0.02: {1, 2, 3, 4}, 0.006: {1, 2, 3, 4}}[share]
    assert tokenizer.encoded_bytes < 1.1 * n_bytes
