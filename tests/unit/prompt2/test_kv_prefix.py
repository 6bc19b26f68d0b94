"""How much of the KV cache a next turn's prompt keeps; docs/prompt.md prints the table."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel
from slm2_web.prompt2.assemble import assemble
from slm2_web.prompt2.request import Evidence, request_of
from slm2_web.sampling2.params import SamplingParams, parse_params
from slm2_web.session import Done, Session
from slm2_web.template2.delta import common_prefix
from slm2_web.template2.machine import template_for
from slm2_web.template2.spec import Conversation, Message, Options
from slm2_web.tokenizer2.runs import Trusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from unit.prompt2.conftest import Model

DOCS = Path(__file__).parents[3] / "docs" / "prompt.md"
POLICY = Message("system", b"Answer briefly.")
QUESTION = Message("user", b"Colour of snow?")
ANSWER = Message("assistant", b"White.")
THOUGHT = b"A colour."
NEXT = Message("user", b"Bye")


class Turn(NamedTuple):
    """The first prompt, the reply that the model wrote, and the second prompt."""

    prompt: list[int]
    reply: list[int]
    next_prompt: list[int]

    @property
    def reused_tokens(self) -> int:
        """What the cache keeps: it holds prompt and reply but for the last id, which was only sampled."""
        return common_prefix([*self.prompt, *self.reply[:-1]], self.next_prompt)


def two_turns(
    qwen3: Model,
    *,
    thought: bytes | None,
    preserve: bool,
    enable: bool | None = None,
    evidence: tuple[Evidence, ...] = (),
) -> Turn:
    options = Options(enable, preserve)
    first = Conversation((POLICY, QUESTION), (), options)
    written = ANSWER.content
    assert isinstance(written, bytes)
    if thought is not None:
        written = b"<think>\n" + thought + b"\n</think>\n\n" + written
    # The model writes ids; these are those of its text, with its markers as such.
    reply = qwen3.tokenizer.encode([Trusted(written + b"<|im_end|>")])
    second = Conversation((POLICY, QUESTION, replace(ANSWER, reasoning=thought), NEXT), (), options)
    prompts = [
        assemble(*qwen3, request_of(conversation, budget_tokens=1000, evidence=evidence)).ids
        for conversation in (first, second)
    ]
    return Turn(prompts[0], reply, prompts[1])


def scenarios(qwen3: Model) -> dict[str, Turn]:
    return {
        "thinking on": two_turns(qwen3, thought=THOUGHT, preserve=False),
        "thinking on, `preserve_thinking`": two_turns(qwen3, thought=THOUGHT, preserve=True),
        "thinking off": two_turns(qwen3, thought=None, preserve=False, enable=False),
        "thinking off, `preserve_thinking`": two_turns(qwen3, thought=None, preserve=True, enable=False),
    }


def table(turns: dict[str, Turn]) -> str:
    """The table of docs/prompt.md."""
    lines = [
        "| | prompt 1 | reply | cached | prompt 2 | reused | computed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, turn in turns.items():
        cached = len(turn.prompt) + len(turn.reply) - 1
        n, reused = len(turn.next_prompt), turn.reused_tokens
        lines.append(
            f"| {name} | {len(turn.prompt)} | {len(turn.reply)} | {cached} | {n} | {reused} | {n - reused} |"
        )
    return "\n".join(lines) + "\n"


def test_the_documentation_has_the_numbers(qwen3: Model) -> None:
    assert table(scenarios(qwen3)) in DOCS.read_text("utf-8")


def test_what_is_kept(qwen3: Model) -> None:
    turns = scenarios(qwen3)
    think = qwen3.tokenizer.control_id(b"<think>")
    # Without its thought the reply is another one from its first id on.
    on = turns["thinking on"]
    assert on.reused_tokens == len(on.prompt)
    assert on.reply[0] == think
    # The empty thought that opened the reply is missing too.
    off = turns["thinking off"]
    assert off.prompt[off.reused_tokens] == think
    for name in ("thinking on, `preserve_thinking`", "thinking off, `preserve_thinking`"):
        turn = turns[name]
        assert turn.reused_tokens == len(turn.prompt) + len(turn.reply) - 1
        assert turn.next_prompt[: turn.reused_tokens + 1] == [*turn.prompt, *turn.reply]


def test_kvc_02_a_thought_of_the_past_is_stripped(qwen3: Model) -> None:
    cached = [
        151644, 8948, 198, 16141, 26753, 13, 151645, 198, 151644, 872, 198, 33281, 315, 11794, 30, 151645,
        198, 151644, 77091, 198, 151667, 198, 32, 12463, 624, 151668, 271, 14075, 13, 151645,
    ]  # fmt: skip
    next_prompt = [
        151644, 8948, 198, 16141, 26753, 13, 151645, 198, 151644, 872, 198, 33281, 315, 11794, 30, 151645,
        198, 151644, 77091, 198, 14075, 13, 151645, 198, 151644, 872, 198, 1359, 68, 151645, 198, 151644,
        77091, 198,
    ]  # fmt: skip
    turn = two_turns(qwen3, thought=THOUGHT, preserve=False)
    assert ([*turn.prompt, *turn.reply], turn.next_prompt) == (cached, next_prompt)
    assert (turn.reused_tokens, len(cached), len(next_prompt)) == (20, 30, 34)


def test_kvc_03_the_same_text_can_be_other_ids(qwen3_tokenizer: Tokenizer) -> None:
    """A cache is compared by ids: by text it would be wrong."""
    generated, text = [4262, 12388, 13, 271], b"Lomond.\n\n"
    assert qwen3_tokenizer.decode(generated) == text
    again = qwen3_tokenizer.encode([Trusted(text)])
    assert again == [43, 316, 2111, 382]
    assert common_prefix(generated, again) == 0


@pytest.mark.parametrize("preserve", [False, True])
def test_evidence_costs_its_own_turn_only(qwen3: Model, preserve: bool) -> None:
    """Evidence stands in the current question: what is before that is kept whatever evidence comes."""
    evidence = (Evidence("a", 1.0, b"Snow is white. " * 20),)
    turn = two_turns(qwen3, thought=THOUGHT, preserve=preserve, evidence=evidence)
    head = qwen3.tokenizer.encode(qwen3.template.render(Conversation((POLICY,)), add_generation_prompt=False))
    opening = qwen3.tokenizer.encode([Trusted(b"<|im_start|>user\n")])
    assert turn.reused_tokens == len(head) + len(opening)


def test_a_turn_less_at_the_front_keeps_the_head_alone(qwen3: Model) -> None:
    """Pass 1 costs the cache, so it is not taken before it has to be."""
    history = [Message(role, b"word %d " % n * 20) for n in range(4) for role in ("user", "assistant")]
    conversation = Conversation((POLICY, *history, QUESTION))
    whole = assemble(*qwen3, request_of(conversation, budget_tokens=1000))
    less = assemble(*qwen3, request_of(conversation, budget_tokens=len(whole.ids) - 1))
    policy = sum(part.tokens for part in less.ledger.parts if part.kind == "policy")
    assert 0 < policy <= common_prefix(whole.ids, less.ids) < len(whole.ids) // 2


@pytest.mark.parametrize("budget_tokens", [400, 150])
def test_a_warm_cache_gives_the_cold_reply(packed_tiny: Path, budget_tokens: int) -> None:
    """Three turns with one cache, and each again with an empty one: the same ids and the same logits' bits.

    With the smaller budget the passes drop exchanges on the way, so that what the cache holds moves.
    """
    model = PackedModel.open(packed_tiny)
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    template = template_for(model.manifest.template, tokenizer)
    warm = Session(tokenizer, ReferenceExecutor(model, max_seq_len=512), model.manifest.eos_ids)
    params = parse_params({"temperature": 1.0, "seed": 7, "max_tokens": 8}, model.manifest.defaults)
    messages: tuple[Message, ...] = ()
    n_dropped = 0
    for question in (b"What is the capital of France?", b"Hello there! " * 3, b"How can I help you?"):
        messages += (Message("user", question),)
        evidence = (Evidence("a", 1.0, b"Paris. " * len(messages)),)
        request = request_of(Conversation(messages), budget_tokens=budget_tokens, evidence=evidence)
        prompt = assemble(template, tokenizer, request)
        n_dropped += sum(part.state == "dropped" for part in prompt.ledger.parts)
        cold = Session(tokenizer, ReferenceExecutor(model, max_seq_len=512), model.manifest.eos_ids)
        n_common = common_prefix(warm.cached_ids, prompt.ids)
        replies = [asyncio.run(reply(session, prompt.ids, params)) for session in (warm, cold)]
        assert replies[0].timings.reused_tokens == min(n_common, len(prompt.ids) - 1)
        assert replies[1].timings.reused_tokens == 0
        assert replies[0].generated_ids == replies[1].generated_ids
        assert replies[0].logit_digests == replies[1].logit_digests
        if len(messages) > 1:
            assert n_common > 0
        messages += (Message("assistant", replies[0].text),)
    assert (n_dropped > 0) == (budget_tokens == 150)


async def reply(session: Session, ids: list[int], params: SamplingParams) -> Done:
    events = [event async for event in session.generate(ids, params)]
    assert isinstance(events[-1], Done)
    return events[-1]
