"""A new turn on a recorded past: the delta of runs, and how much of the cache survives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.delta import Past, common_prefix, delta_of
from slm2_web.template2.spec import Conversation, Message, Options
from slm2_web.template2.stretches import StretchEncoder
from slm2_web.tokenizer2.runs import Run, Trusted
from template_corpus import conversations
from unit.template2.conftest import Model

QUESTION = Message("user", b"What is 2+2?")
NEXT = Message("user", b"And 3+3?")
ON, OFF = Options(True), Options(False)
KEPT_ON, KEPT_OFF = Options(True, True), Options(False, True)


def past_of(model: Model, conversation: Conversation, reply: Message, written: bytes) -> Past:
    """The past in which the model answered with the tokens of `written`, which were read as `reply`."""
    ids = model.tokenizer.encode(model.template.render(conversation))
    ids += model.tokenizer.encode([Trusted(written + b"<|im_end|>")])
    spoken = replace(conversation, messages=(*conversation.messages, reply))
    return Past(tuple(model.template.render(spoken, add_generation_prompt=False)), tuple(ids))


@pytest.mark.parametrize(
    ("family", "options", "reply", "written", "extends"),
    [
        ("chatml", Options(), Message("assistant", b"4."), b"4.", True),
        ("qwen2.5", Options(), Message("assistant", b"4."), b"4.", True),
        ("qwen3", ON, Message("assistant", b"4.", b"easy"), b"<think>\neasy\n</think>\n\n4.", False),
        (
            "qwen3",
            ON,
            Message("assistant", b"<think>\neasy\n</think>\n\n4."),
            b"<think>\neasy\n</think>\n\n4.",
            False,
        ),
        ("qwen3", OFF, Message("assistant", b"4."), b"4.", False),
        ("qwen3", KEPT_ON, Message("assistant", b"4.", b"easy"), b"<think>\neasy\n</think>\n\n4.", True),
        (
            "qwen3",
            KEPT_ON,
            Message("assistant", b"<think>\neasy\n</think>\n\n4."),
            b"<think>\neasy\n</think>\n\n4.",
            True,
        ),
        ("qwen3", KEPT_OFF, Message("assistant", b"4."), b"4.", True),
        ("qwen3", KEPT_OFF, Message("assistant", b"4.", b""), b"4.", True),
    ],
)
def test_a_second_turn(
    family: str, options: Options, reply: Message, written: bytes, extends: bool, models: Mapping[str, Model]
) -> None:
    model = models[family]
    first = Conversation((QUESTION,), (), options)
    past = past_of(model, first, reply, written)
    runs = model.template.render(Conversation((QUESTION, reply, NEXT), (), options))
    delta = delta_of(past, runs, StretchEncoder(model.tokenizer))
    assert list(delta.ids) == model.tokenizer.encode(runs)
    assert delta.ids[: delta.kept_tokens] == past.ids[: delta.kept_tokens]
    n_first = len(model.tokenizer.encode(model.template.render(first)))
    if extends:
        assert delta.kept_tokens == len(past.ids)
        assert delta.runs is not None
        assert model.text(list(past.runs)) + model.text(list(delta.runs)) == model.text(runs)
        assert model.text(list(delta.runs)).startswith("<|im_start|>user\nAnd 3+3?<|im_end|>\n")
    else:
        assert delta.runs is None
        # All of the first prompt is kept, but for an empty thought that opened the reply.
        opened = 4 if options == OFF else 0
        assert delta.kept_tokens == n_first - opened
        assert delta.ids[delta.kept_tokens] != past.ids[delta.kept_tokens]


def test_one_id_is_always_left_to_compute(models: Mapping[str, Model]) -> None:
    model = models["chatml"]
    runs: list[Run] = model.template.render(Conversation((QUESTION,)))
    ids = tuple(model.tokenizer.encode(runs))
    encoder = StretchEncoder(model.tokenizer)
    again = delta_of(Past(tuple(runs), ids), runs, encoder)
    assert (again.kept_tokens, again.runs) == (len(ids) - 1, ())
    nothing = delta_of(Past((), ()), runs, encoder)
    assert (nothing.kept_tokens, nothing.runs) == (0, tuple(runs))


def test_common_prefix() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2]) == 2
    assert common_prefix([1, 2, 3], [1, 4, 3]) == 1


@pytest.mark.parametrize("family", ["qwen3", "qwen2.5", "chatml"])
def test_the_corpus_a_message_at_a_time(family: str, models: Mapping[str, Model]) -> None:
    """With thoughts preserved each conversation extends its own beginning, whatever it says."""
    model = models[family]
    encoder = StretchEncoder(model.tokenizer)
    n_deltas = 0
    for case in conversations(family, 150):
        whole = parse_conversation({**case.raw, "preserve_thinking": True})
        runs = model.template.render(whole, add_generation_prompt=False)
        for n in range(1, len(whole.messages)):
            if whole.messages[n].role == "tool":
                continue  # in the middle of a turn
            part = replace(whole, messages=whole.messages[:n])
            if family == "chatml" and part.messages[-1].role == "system":
                continue
            before = tuple(model.template.render(part, add_generation_prompt=False))
            delta = delta_of(Past(before, tuple(encoder.encode(before))), runs, encoder)
            assert delta.runs is not None
            assert [*before, *delta.runs] == runs
            assert delta.kept_tokens == len(encoder.encode(before))
            n_deltas += 1
    assert n_deltas > 150
