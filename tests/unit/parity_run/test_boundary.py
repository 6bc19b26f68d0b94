"""The stage `boundary`: its replies are CPython's, its digest is the page's."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

from slm2_web.compile.parity_model import NAME, make_parity_model
from slm2_web.parity.canonical import Digest, canonical
from slm2_web.parity_run import boundary

ROOT = Path(__file__).resolve().parents[3]


def test_the_files_replies_are_cpythons(tmp_path: Path) -> None:
    make_parity_model(tmp_path / NAME)
    data = json.loads(boundary.FILE.read_text("utf-8"))
    assert data["model"] == NAME
    assert asyncio.run(boundary.all_answered(data, tmp_path, "wasm")) == data


def test_a_changed_reply_is_noticed(tmp_path: Path) -> None:
    make_parity_model(tmp_path / NAME)
    data = json.loads(boundary.FILE.read_text("utf-8"))
    (case,) = [case for case in data["cases"] if case["kind"] == "busy"]
    case["output"]["ids"][3] += 1
    assert asyncio.run(boundary.all_answered(data, tmp_path, "wasm")) != data


def test_every_kind_of_case_is_there() -> None:
    cases = json.loads(boundary.FILE.read_text("utf-8"))["cases"]
    kinds = {"encode", "decode", "refuse", "chat", "abort", "busy", "reload", "fault"}
    assert {case["kind"] for case in cases} == kinds
    replies = [case["output"]["text"] for case in cases if case["kind"] == "chat"]
    assert "🦥 naïve 你好 👩\u200d👧 €" in replies
    assert {case["input"].get("state") for case in cases if case["kind"] == "fault"} == {"new", "ready"}


def test_page_and_cpython_spell_and_digest_records_alike(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node, "the tests need Node"
    extra = {
        "id": "x",
        "input": {"\uffff": 1, "\U00010000": [None, True], 'é"\\\n\x7f\x01': -3},
        "output": "🦥",
    }
    data = json.loads(boundary.FILE.read_text("utf-8"))
    records = [*boundary.records(data), extra]
    (tmp_path / "records.json").write_text(json.dumps(records))
    script = f"""
      import {{ readFileSync }} from "node:fs";
      import {{ canonical, digestOf }} from {json.dumps((ROOT / "web" / "parity-records.js").as_uri())};
      const records = JSON.parse(readFileSync({json.dumps(str(tmp_path / "records.json"))}, "utf8"));
      console.log(JSON.stringify({{ ...(await digestOf(records)), last: canonical(records.at(-1)) }}));
    """
    done = subprocess.run(
        [node, "--input-type=module", "-e", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    found = json.loads(done.stdout)
    digest = Digest()
    for record in records:
        digest.add(canonical(record))
    assert found["last"] == canonical(extra).decode()
    assert (found["digest"], found["marks"]) == (digest.digest, digest.marks)
