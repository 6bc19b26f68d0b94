"""The stage `boundary` outside a browser: its digest, and its replies made again by CPython.

    python -m slm2_web.parity_run.boundary --write     put the replies' text, reasons and ids into
                                                       web/parity-boundary.json
    python -m slm2_web.parity_run.boundary --check     compare them; exit status 1 when they differ

Only a page can run the stage (web/parity-boundary.js): it is about text, streams, workers and messages. But
what a model replies in it is CPython's to say, on the executor that defines the bits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from slm2_web.parity.baseline import open_subject
from slm2_web.parity.canonical import Digest, canonical
from slm2_web.parity.certificate import SIZES, Expected
from slm2_web.parity.subject import Subject
from slm2_web.request import parse_request, prompt_of
from slm2_web.sampling2.params import parse_params
from slm2_web.session import Done

ROOT: Final = Path(__file__).resolve().parents[3]
FILE: Final = ROOT / "web" / "parity-boundary.json"
NAME: Final = "boundary"


def records(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records that a page is to make of the file's cases."""
    return [
        {
            "id": f"{NAME}-{index:05}",
            "input": {"kind": case["kind"], **case["input"]},
            "output": case["output"],
        }
        for index, case in enumerate(data["cases"])
    ]


def expected(data: Mapping[str, Any]) -> list[Expected]:
    """What the stage comes to: the same in every size."""
    made = records(data)
    digest = Digest()
    for record in made:
        digest.add(canonical(record))
    return [Expected(NAME, size, len(made), digest.digest) for size in SIZES]


async def reply(subject: Subject, case: Mapping[str, Any]) -> dict[str, Any]:
    """What a case's reply is in CPython: text, reason, ids."""
    asked = case["input"]
    raw = dict(asked["options"])
    thinking = raw.pop("enable_thinking")
    if "seed" in raw:
        raw["seed"] = int(raw["seed"])
    if "stop" in raw:
        raw["stop"] = [raw["stop"]]
    if "response_format" in raw:
        raw["response_format"] = json.dumps(raw["response_format"], ensure_ascii=False)
    params = parse_params(raw, subject.manifest.defaults)
    wanted = {"messages": [{"role": "user", "content": asked["content"]}], "enable_thinking": thinking}
    request = parse_request(wanted, params, subject.max_seq_len)
    prompt = prompt_of(request, subject.template, subject.tokenizer)
    done: Done | None = None
    async for event in subject.session.generate(prompt.ids, request.params):
        if isinstance(event, Done):
            done = event
    assert done is not None
    return {"text": done.text.decode("utf-8"), "reason": done.reason, "ids": list(done.generated_ids)}


async def answered(subject: Subject, case: Mapping[str, Any]) -> dict[str, Any]:
    """The case with its reply as CPython makes it; a case that asks the model nothing as it is."""
    if "content" not in case["input"]:
        return dict(case)
    found = await reply(subject, case)
    return {**case, "output": {key: found.get(key, value) for key, value in case["output"].items()}}


async def all_answered(data: Mapping[str, Any], models: Path, executor: str) -> dict[str, Any]:
    """The file's content, every reply made again."""
    subject = await open_subject(models / data["model"], executor)
    return {**data, "cases": [await answered(subject, case) for case in data["cases"]]}


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m slm2_web.parity_run.boundary")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the replies into the file")
    what.add_argument("--check", action="store_true", help="compare them with the file")
    parser.add_argument("--executor", default="reference", help="reference, wasm or wasm-plain")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models", help="where the models lie")
    options = parser.parse_args(arguments)
    data = json.loads(FILE.read_text("utf-8"))
    found = asyncio.run(all_answered(data, options.models, options.executor))
    if options.write:
        FILE.write_text(_text(found), "utf-8")
        return 0
    for made, known in zip(records(found), records(data), strict=True):
        if made != known:
            found_text, known_text = (json.dumps(each["output"]) for each in (made, known))
            print(f"{known['id']}: found {found_text}, the file has {known_text}")
    return int(found != data)


def _text(data: Mapping[str, Any]) -> str:
    """JSON with a line for each case."""
    cases = ",\n".join(f"    {json.dumps(case, ensure_ascii=False)}" for case in data["cases"])
    model = json.dumps(data["model"])
    # What can't be seen stays escaped.
    cases = re.sub("[\u200d\ufeff]", lambda found: f"\\u{ord(found[0]):04x}", cases)
    return f'{{\n  "model": {model},\n  "cases": [\n{cases}\n  ]\n}}\n'


if __name__ == "__main__":
    sys.exit(main())
