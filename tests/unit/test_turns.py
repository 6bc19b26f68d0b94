"""A conversation's second turn: what of the KV cache it keeps, and that the reply shows nothing of that.

The first reply is written by a hand that the model is made to follow, so that it has a thought, an answer and
an end; its keys and values are the model's own. Every reply is compared with one from an empty cache, bit for
bit.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slm2_web.compile.pack_hf import pack_hf
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.manifest import TemplateSpec
from slm2_web.packed import PackedModel
from slm2_web.reply import Markers
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done, Session
from slm2_web.template2.machine import HasRender, template_for
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_safetensors import make_tiny_hf

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTIONS = ["Will it rain?", "And tomorrow, in the mountains?"]
THOUGHT = "\nThe sky is grey.\n"
ANSWER = "\n\nYes, I think so."


class Led(ReferenceExecutor):
    """The model's own logits, but for the ids in `script`, one after the other, which beat all others."""

    script: list[int]

    async def forward(self, ids: Sequence[int], *, want_logits: bool) -> NDArray[np.float32] | None:
        logits = await super().forward(ids, want_logits=want_logits)
        if logits is not None and self.script:
            logits[self.script.pop(0)] = 1e9
        return logits


@dataclass
class Talk:
    """A model, and a conversation with it."""

    packed: PackedModel
    tokenizer: Tokenizer
    template: HasRender
    options: dict[str, Any]
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = self._executor()
        self.session = self._session(self.executor)

    def _executor(self) -> Led:
        executor = Led(self.packed, max_seq_len=256)
        executor.script = []
        return executor

    def _session(self, executor: Led) -> Session:
        return Session(self.tokenizer, executor, self.packed.manifest.eos_ids, Markers.of(self.tokenizer))

    def ask(self, question: str, script: Sequence[int] = ()) -> tuple[list[int], Done, Done]:
        """(prompt, the reply, the reply from an empty cache); the reply then is part of the conversation."""
        self.messages.append({"role": "user", "content": question})
        params = parse_params({"temperature": 0.8, "seed": 4, "max_tokens": max(len(script), 6)}, {})
        request = parse_request({"messages": self.messages, **self.options}, params, 256)
        prompt = prompt_of(request, self.template, self.tokenizer).ids
        self.executor.script = list(script)
        warm = self._reply(self.session, prompt, params)
        executor = self._executor()
        executor.script = list(script)
        cold = self._reply(self._session(executor), prompt, params)
        thought = {} if warm.reasoning is None else {"reasoning_content": warm.reasoning}
        self.messages.append({"role": "assistant", "content": warm.text, **thought})
        return prompt, warm, cold

    @staticmethod
    def _reply(session: Session, prompt: list[int], params: Any) -> Done:
        async def run() -> Done:
            return [event async for event in session.generate(prompt, params)][-1]  # type: ignore[return-value]

        return asyncio.run(run())


def same(a: Done, b: Done) -> bool:
    """Bit for bit, but for the times."""
    return replace(a, timings=b.timings) == b


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids they begin with alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@pytest.fixture(scope="module")
def tiny_qwen3(tmp_path_factory: pytest.TempPathFactory, qwen3_file: bytes) -> PackedModel:
    """A tiny random Qwen3 with the publisher's vocabulary."""
    folder = tmp_path_factory.mktemp("qwen3")
    config = {"vocab_size": 151936, "max_position_embeddings": 512, "bos_token_id": 151643}
    generation = {"eos_token_id": [151645, 151643], "pad_token_id": 151643}
    tiny = make_tiny_hf(
        folder / "hf", "qwen3", seed=3, config=config, generation=generation, keep_weights=False
    )
    pack_hf(tiny.files, folder / "packed", tiny.spec, compile_tokenizer=lambda _: qwen3_file)
    return PackedModel.open(folder / "packed")


@pytest.mark.parametrize(
    ("options", "thinks", "keeps"),
    [
        ({}, True, "the prompt"),
        ({"enable_thinking": False}, False, "the prompt but for the empty thought"),
        ({"preserve_thinking": True}, True, "everything"),
        ({"preserve_thinking": True, "enable_thinking": False}, False, "everything"),
    ],
    ids=["thinking", "not thinking", "preserved", "preserved, not thinking"],
)
def test_qwen3_reuses_the_true_common_prefix(
    tiny_qwen3: PackedModel, qwen3_tokenizer: Tokenizer, options: dict[str, Any], thinks: bool, keeps: str
) -> None:
    template = template_for(TemplateSpec("qwen3", None), qwen3_tokenizer)
    talk = Talk(tiny_qwen3, qwen3_tokenizer, template, options, [SYSTEM])
    answer = ANSWER if thinks else ANSWER.strip()
    text = f"<think>{THOUGHT}</think>{answer}<|im_end|>" if thinks else f"{answer}<|im_end|>"
    script = qwen3_tokenizer.encode([Trusted(text.encode())])
    first, reply, cold = talk.ask(QUESTIONS[0], script)
    assert same(reply, cold)
    assert list(reply.generated_ids) == script
    assert reply.reasoning == (THOUGHT.strip().encode() if thinks else None)
    assert reply.text == ANSWER.strip().encode()

    cached = [*first, *script[:-1]]  # the end of the turn was said, and never read
    second, reply, cold = talk.ask(QUESTIONS[1])
    assert same(reply, cold)
    reused = reply.timings.reused_tokens
    print(f"{options}: {len(cached)} tokens cached, {len(second)} in the prompt, {reused} reused")
    assert reused == common(cached, second)
    empty_thought = len(qwen3_tokenizer.encode([Trusted(b"<think>\n\n</think>\n\n")]))
    wanted = {
        "the prompt": len(first),
        "the prompt but for the empty thought": len(first) - empty_thought,
        "everything": len(cached),
    }
    assert reused == wanted[keeps]


def test_a_reply_that_is_not_as_its_text_would_be_encoded(
    tiny_qwen3: PackedModel, qwen3_tokenizer: Tokenizer
) -> None:
    """ggml-org/llama.cpp#16632: the same text, other ids. The cache keeps what is the same, and no more."""
    template = template_for(TemplateSpec("qwen3", None), qwen3_tokenizer)
    talk = Talk(tiny_qwen3, qwen3_tokenizer, template, {"preserve_thinking": True, "enable_thinking": False})
    letters = [i for c in b"Loch Lomond" for i in qwen3_tokenizer.encode([Trusted(bytes([c]))])]
    first, _, _ = talk.ask(QUESTIONS[0], [*letters, 151645])
    second, reply, cold = talk.ask(QUESTIONS[1])
    assert same(reply, cold)
    assert reply.timings.reused_tokens == common([*first, *letters], second) < len(first) + len(letters)


@pytest.mark.timeout(600)
def test_the_real_smollm2_reuses_all_that_was_said(packed_smollm2: Path) -> None:
    packed = PackedModel.open(packed_smollm2)
    tokenizer = Tokenizer.from_bytes(packed.tokenizer_bytes)
    talk = Talk(packed, tokenizer, template_for(packed.manifest.template, tokenizer), {})
    first, reply, cold = talk.ask("What is 2+2?")
    assert same(reply, cold)
    said = [*first, *reply.generated_ids]
    second, reply, cold = talk.ask("And 3+3?")
    assert same(reply, cold)
    assert reply.timings.reused_tokens == common(said[:-1], second)
    print(f"{len(said) - 1} tokens cached, {len(second)} in the prompt, {reply.timings.reused_tokens} reused")
    assert reply.timings.reused_tokens == len(said) - 1
