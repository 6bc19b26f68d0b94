"""The suite: how much of what it holds, the same each time, and told step by step."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from typing import Any

import pytest

from slm2_web.errors import Cancelled, InputError
from slm2_web.parity import suite, template
from slm2_web.parity.canonical import Digest, bits, canonical, floats, mark, real
from slm2_web.parity.subject import Subject
from slm2_web.protocol import PARITY_SIZES, PARITY_STAGES

LEAST = {"tokenizer": 2000, "template": 4 * 500, "prompt": 100, "sampling": 10_000, "stream": 500}


def run(subject: Subject, stages: list[str], size: Any, **options: Any) -> list[Any]:
    async def work() -> list[Any]:
        return [event async for event in suite.run(subject, stages, size, **options)]

    return asyncio.run(work())


def test_names_are_the_protocol_s() -> None:
    assert tuple(suite.STAGES) == PARITY_STAGES
    assert suite.SIZES == PARITY_SIZES


def test_there_is_enough_of_everything() -> None:
    for name, stage in suite.STAGES.items():
        quick, reduced, full = (stage.sizes[size] for size in suite.SIZES)
        assert quick < reduced < full
        assert full >= LEAST.get(name, 20), name


def test_every_family_has_its_conversations(subject: Subject) -> None:
    families = [each[0] for each in template.families_of(subject)]
    assert families == ["chatml", "compiled", "qwen2.5", "qwen3"]
    assert template.STAGE.sizes["full"] // len(families) >= 500


@pytest.mark.parametrize("name", suite.STAGES)
def test_the_same_each_time(subject: Subject, name: str) -> None:
    first, second = (run(subject, [name], "quick")[-1] for _ in range(2))
    assert (first.digest, first.marks) == (second.digest, second.marks)
    assert len(first.marks) == 8 * first.vectors == 8 * suite.STAGES[name].sizes["quick"]
    records = [asyncio.run(suite.record(subject, name, i, "quick")) for i in range(first.vectors)]
    lines = [canonical(record) for record in records]
    assert "".join(map(mark, lines)) == first.marks
    digest = Digest()
    for line in lines:
        digest.add(line)
    assert digest.digest == first.digest
    assert len({record["id"] for record in records}) == len(records)
    # An input is plain JSON: what has been written and read is the same input.
    for record in records:
        read = json.loads(json.dumps(record["input"]))
        assert canonical(asyncio.run(suite.output(subject, name, read))) == canonical(record["output"])


def test_outputs_are_of_all_kinds(subject: Subject) -> None:
    def outputs(name: str) -> list[Any]:
        total = suite.STAGES[name].sizes["reduced"]
        return [asyncio.run(suite.record(subject, name, i, "reduced"))["output"] for i in range(total)]

    def codes(found: list[Any]) -> set[str]:
        return {output["error"] for output in found if "error" in output}

    assert {"input.text", "input.token_id"} <= codes(outputs("tokenizer"))
    assert len(codes(outputs("template"))) >= 6
    prompts = outputs("prompt")
    passes = {part["in_pass"] for output in prompts if "ids" in output for part in output["ledger"]["parts"]}
    assert passes >= {None, 1, 2, 3, 4}
    assert "input.budget" in codes(prompts)
    sampled = outputs("sampling")
    assert codes(sampled) == {"device.bad_logits"}
    assert sum(len(output.get("kept_ids", ())) > 2 for output in sampled) > len(sampled) / 4
    endings = {output["ending"] and output["ending"][0] for output in outputs("stream")}
    assert endings == {None, "stop_string", "invalid_utf8"}
    replies = [reply for output in outputs("chat") for reply in output["replies"]]
    reasons = {reply.get("reason") for reply in replies}
    assert reasons >= {"max_tokens", "cancelled", "context_full"}


def test_chunks_and_reuse_do_not_show(subject: Subject) -> None:
    outputs = [asyncio.run(suite.record(subject, "forward", i, "full"))["output"] for i in range(9)]
    assert outputs[0] == outputs[1] == outputs[2] != outputs[3] == outputs[4] == outputs[5]


def test_progress_then_result(subject: Subject) -> None:
    events = run(subject, ["stream", "sampling"], "quick")
    for name in ("stream", "sampling"):
        total = suite.STAGES[name].sizes["quick"]
        mine = [event for event in events if event.stage == name]
        assert mine[0] == suite.Progress(name, 0, total)
        assert mine[-2] == suite.Progress(name, total, total)
        assert mine[-1].as_message()["vectors"] == total
    assert [event.stage for event in events if isinstance(event, suite.StageResult)] == ["stream", "sampling"]


def test_cancelled_before_the_next_record(subject: Subject) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Cancelled, match="after 2 of"):
        run(subject, ["stream"], "quick", cancelled=lambda: next(asked))


@pytest.mark.parametrize(
    ("stages", "size"), [(["no"], "quick"), (["stream"], "huge"), (["stream", "no"], "full")]
)
def test_what_there_is_not(subject: Subject, stages: list[str], size: str) -> None:
    with pytest.raises(InputError, match=r"input\.params"):
        run(subject, stages, size)


def test_a_record_that_there_is_not(subject: Subject) -> None:
    for index in (-1, suite.STAGES["stream"].sizes["quick"]):
        with pytest.raises(InputError, match=r"input\.params: index"):
            asyncio.run(suite.record(subject, "stream", index, "quick"))


def test_without_an_executor(subject: Subject) -> None:
    text = Subject(subject.manifest, subject.artifacts, subject.tokenizer, subject.template)
    assert run(text, ["tokenizer", "sampling"], "quick")[-1].vectors
    with pytest.raises(InputError, match=r"input\.params: stage"):
        run(text, ["forward"], "quick")
    assert suite.info(text, "quick")["executor"] == ""


@pytest.mark.parametrize(
    "data", [b"", b"[", b"1.5", b'{"a": 1e3}', b"9007199254740993", b'"\\ud800"', b"{}", b"[]"]
)
def test_inputs_from_outside(subject: Subject, data: bytes) -> None:
    with pytest.raises(InputError, match=r"input\.json"):
        asyncio.run(suite.output_of_any(subject, "tokenizer", suite.read_input(data)))


def test_any_input_of_a_stage(subject: Subject) -> None:
    made = suite.read_input(b'{"op": "encode", "text": "Hello", "trusted": false}')
    found = asyncio.run(suite.output_of_any(subject, "tokenizer", made))
    assert bytes.fromhex(found["show"]) == b"Hello"


def test_canonical_json_is_what_javascript_writes() -> None:
    values = [
        "".join(map(chr, range(0x300))),
        "\u2028\u2029\ufeff\uffff\U0001f600",
        -(2**53) + 1,
        None,
        True,
        {},
        [[]],
    ]
    node = shutil.which("node")
    assert node, "no Node"
    program = "process.stdout.write(JSON.stringify(JSON.parse(require('fs').readFileSync(0, 'utf8'))))"
    written = subprocess.run(
        [node, "-e", program],
        input=json.dumps(values),
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert canonical(values) == written.stdout.encode("utf-8")
    assert canonical({"b": 1, "a": {"é": 0, "z": 0}}) == '{"a":{"z":0,"é":0},"b":1}'.encode()


def test_floats_are_bits() -> None:
    assert bits(1.0) == "0000803f"
    assert bits(floats("0000803f000000803412c07f")) == "0000803f000000803412c07f"
    assert real("0000403f") == 0.75
    with pytest.raises(AssertionError):
        canonical({"a": 0.5})
