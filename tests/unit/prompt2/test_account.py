"""The ledger's counting where a template refuses what the counting makes up."""

from __future__ import annotations

import pytest

from slm2_web.compile.jinja import compile_template
from slm2_web.prompt2.assemble import assemble
from slm2_web.prompt2.request import request_of
from slm2_web.template2.bounded.program import read_program
from slm2_web.template2.compiled import CompiledTemplate
from slm2_web.template2.spec import Conversation, Message
from slm2_web.tokenizer2.tokenizer import Tokenizer

SOURCE = (
    "{% for m in messages %}{% if not m.content | trim %}{{ raise_exception('empty message') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("system", [(), (Message("system", b"Be brief."),)])
def test_a_template_that_refuses_empty_messages(
    system: tuple[Message, ...], smollm2_tokenizer: Tokenizer
) -> None:
    template = CompiledTemplate(read_program(compile_template(SOURCE, {})), smollm2_tokenizer)
    messages = (*system, Message("user", b"a"), Message("assistant", b"b"), Message("user", b"hi"))
    conversation = Conversation(messages)
    prompt = assemble(template, smollm2_tokenizer, request_of(conversation, budget_tokens=500))
    assert prompt.ids == smollm2_tokenizer.encode(template.render(conversation))
    ledger = prompt.ledger.as_json()
    assert sum(part["tokens"] for part in ledger["parts"]) == len(prompt.ids) == ledger["prompt_tokens"]
