"""The hand-written templates on the corpus: against stored ids; a part of it against the publishers anew."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.stretches import StretchEncoder
from template_corpus import COUNTS, FAMILIES, conversations, digest
from template_models import VECTORS
from template_oracles import TemplateOracle
from unit.template2.conftest import Model

N_ANEW = 400


@pytest.fixture(scope="module")
def goldens() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(gzip.decompress((VECTORS / "template_goldens.json.gz").read_bytes()))
    families: dict[str, Any] = made["families"]
    return families


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_equal_the_publishers(
    family: str, models: Mapping[str, Model], goldens: Mapping[str, Any]
) -> None:
    template, tokenizer = models[family]
    golden = goldens[family]
    assert golden["count"] == COUNTS[family] >= (10_000 if family == "qwen3" else 2_000)
    by_stretches = StretchEncoder(tokenizer)
    digests = ""
    for number, case in enumerate(conversations(family)):
        runs = template.render(parse_conversation(case.raw), add_generation_prompt=case.add_generation_prompt)
        ids = tokenizer.encode(runs)
        assert by_stretches.encode(runs) == ids
        if number < len(golden["full"]):
            assert ids == golden["full"][number]
        digests += digest(ids)
    different = [
        at // 8 for at in range(0, len(digests), 8) if digests[at : at + 8] != golden["digests"][at : at + 8]
    ]
    assert different == []
    assert len(digests) == len(golden["digests"])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_goldens_are_the_publishers(
    family: str, publishers: Mapping[str, TemplateOracle], goldens: Mapping[str, Any]
) -> None:
    publisher, golden = publishers[family], goldens[family]
    n_by_trust = 0
    for number, case in enumerate(conversations(family, N_ANEW)):
        is_smuggling = publisher.is_smuggling(*case)
        n_by_trust += is_smuggling
        ids = publisher.ids_by_trust(*case) if is_smuggling else publisher.ids(*case)
        assert digest(ids) == golden["digests"][8 * number : 8 * number + 8]
    assert 0 < n_by_trust < N_ANEW // 2


def test_the_corpus_has_what_it_should() -> None:
    cases = list(conversations("qwen3", 2_000))
    messages = [message for case in cases for message in case.raw["messages"]]
    calls = [call.get("function", call) for message in messages for call in message.get("tool_calls") or ()]
    contents = [message.get("content") or "" for message in messages]
    assert {message["role"] for message in messages} == {"system", "user", "assistant", "tool"}
    assert {type(call["arguments"]) for call in calls} == {str, dict}
    assert {case.raw.get("enable_thinking", "unset") for case in cases} == {True, False, None, "unset"}
    assert any(case.raw.get("tools") for case in cases)
    assert any(case.raw.get("tools") == [] for case in cases)
    assert any(isinstance(message.get("reasoning_content"), str) for message in messages)
    for part in ("</think>", "<|im_end|>", "<tool_response>", "\u0301"):
        assert any(part in content for content in contents), part
    assert any(
        content.startswith("<tool_response>") and content.endswith("</tool_response>") for content in contents
    )
    assert any(content.startswith("\n") for content in contents)
    assert any(content.endswith("\n") for content in contents)
