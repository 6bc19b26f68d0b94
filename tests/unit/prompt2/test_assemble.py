"""The prompt fits and leaves room, or is refused with the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from slm2_web.errors import InputError
from slm2_web.manifest import parse_manifest
from slm2_web.prompt2.assemble import assemble
from slm2_web.template2.machine import Template, template_for
from slm2_web.template2.spec import Message
from slm2_web.tokenizer2.tokenizer import Tokenizer

MESSAGES = [Message("user", b"Tell me a story about a cat.")]


@pytest.fixture(scope="module")
def template(packed_smollm2: Path, smollm2_tokenizer: Tokenizer) -> Template:
    manifest = parse_manifest((packed_smollm2 / "manifest.json").read_bytes())
    return template_for(manifest.template, smollm2_tokenizer)


def test_a_prompt_that_fits(template: Template, smollm2_tokenizer: Tokenizer) -> None:
    ids = smollm2_tokenizer.encode(template.render(MESSAGES))
    n = len(ids)
    for max_seq_len, reserve_tokens in ((8192, 512), (n, 0), (n + 1, 1)):
        assembled = assemble(
            template, smollm2_tokenizer, MESSAGES, max_seq_len=max_seq_len, reserve_tokens=reserve_tokens
        )
        assert assembled == ids


@pytest.mark.parametrize(("room", "reserve_tokens"), [(-1, 0), (0, 1), (10, 11), (0, 1 << 20)])
def test_a_prompt_that_does_not_fit(
    template: Template, smollm2_tokenizer: Tokenizer, room: int, reserve_tokens: int
) -> None:
    n = len(smollm2_tokenizer.encode(template.render(MESSAGES)))
    with pytest.raises(InputError) as error:
        assemble(template, smollm2_tokenizer, MESSAGES, max_seq_len=n + room, reserve_tokens=reserve_tokens)
    assert error.value.code == "input.budget"
    assert error.value.detail == {
        "prompt_tokens": n,
        "max_seq_len": n + room,
        "reserve_tokens": reserve_tokens,
    }


def test_errors_of_the_stages_before_pass_through(template: Template, smollm2_tokenizer: Tokenizer) -> None:
    for messages, code in (
        ([], "template.order"),
        ([Message("user", b"\xff")], "input.text"),
        ([Message("user", b"\x04")], "input.character"),
    ):
        with pytest.raises(InputError) as error:
            assemble(template, smollm2_tokenizer, messages, max_seq_len=8192, reserve_tokens=0)
        assert error.value.code == code
