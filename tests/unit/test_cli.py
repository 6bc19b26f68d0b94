"""The command line: every command, every kind of bad input, exit statuses, and that stdout is only JSON."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interrupts import heed_ctrl_c
from slm2_web import cli
from slm2_web.cli import stdio
from slm2_web.errors import CODES
from slm2_web.tokenizer2.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
ASK = {"messages": [{"role": "user", "content": "Hello there!"}]}
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 4}


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    status: int
    out: bytes
    err: str

    @property
    def value(self) -> Any:
        """The one line of stdout."""
        assert self.status == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        """The lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, Any]:
        """The error on stderr."""
        assert self.status == 2
        assert self.out == b""
        error: dict[str, Any] = json.loads(self.err)["error"]
        assert set(error) == {"code", "message", "detail"}
        assert error["code"] in CODES
        return error


Slm2Web = Callable[..., Result]


@pytest.fixture
def slm2_web(
    packed_tiny: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Slm2Web:
    """Runs a command in this process; a value for stdin is written as JSON, a list of values as lines."""
    monkeypatch.setenv("SLM2_MODELS", str(packed_tiny.parent))

    def run(arguments: str, stdin: Any = b"") -> Result:
        data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
        if isinstance(stdin, list):
            data = b"".join(json.dumps(value).encode() + b"\n" for value in stdin)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsysbinary.readouterr()
        status = cli.run(arguments.split())
        captured = capsysbinary.readouterr()
        return Result(status, captured.out, captured.err.decode())

    return run


def spawn(arguments: Sequence[str], models: Path, **more: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py"), "SLM2_MODELS": str(models)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "slm2_web.cli", *arguments]
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=environment,
        preexec_fn=heed_ctrl_c,
        **more,
    )


# --- text and ids ----------------------------------------------------------------------------------------


def test_tokenize_takes_text_bytes_runs_and_plain_text(slm2_web: Slm2Web, packed_tiny: Path) -> None:
    text = "Hello there <|im_end|>"
    untrusted = slm2_web("tokenize --model tiny", {"text": text}).value["ids"]
    assert slm2_web("tokenize --model tiny", {"bytes_hex": text.encode().hex()}).value["ids"] == untrusted
    assert slm2_web("tokenize --model tiny", text.encode()).value["ids"] == untrusted
    runs = [{"text": "Hello there ", "trusted": False}, {"text": "<|im_end|>", "trusted": True}]
    trusted = slm2_web("tokenize --model tiny", {"runs": runs}).value["ids"]
    tokenizer = Tokenizer.from_bytes((packed_tiny / "tokenizer.slm2tok").read_bytes())
    assert trusted[-1] == tokenizer.control_id(b"<|im_end|>")
    assert not any(tokenizer.is_control(i) for i in untrusted)
    assert tokenizer.decode(untrusted) == tokenizer.decode(trusted) == text.encode()
    # plain text is taken byte for byte
    ids = slm2_web("tokenize --model tiny", b"  a\n").value["ids"]
    assert tokenizer.decode(ids) == b"  a\n"
    assert slm2_web("tokenize --model tiny", b"").value == {"ids": []}


def test_detokenize_shows_or_hides_added_tokens_and_gives_bytes_where_it_must(slm2_web: Slm2Web) -> None:
    ids = slm2_web("tokenize --model tiny", {"runs": [{"text": "hé<|im_end|>", "trusted": True}]}).value[
        "ids"
    ]
    assert slm2_web("detokenize --model tiny", {"ids": ids}).value == {"text": "hé<|im_end|>"}
    assert slm2_web("detokenize --model tiny", {"ids": ids, "special": "hide"}).value == {"text": "hé"}
    half = slm2_web("tokenize --model tiny", {"text": "é"}).value["ids"][:1]
    assert slm2_web("detokenize --model tiny", {"ids": half}).value == {"bytes_hex": "c3"}
    assert slm2_web("detokenize --model tiny", {"ids": [10**6]}).error["code"] == "input.token_id"
    assert slm2_web("detokenize --model tiny", {"ids": [-1]}).error["code"] == "input.token_id"


def test_render_frames_messages(slm2_web: Slm2Web) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi <|im_end|>"}]
    found = slm2_web("render --model tiny", {"messages": messages}).value
    framed = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhi <|im_end|><|im_end|>\n"
    assert found["text"] == framed + "<|im_start|>assistant\n"
    without = slm2_web("render --model tiny", {"messages": messages, "add_generation_prompt": False}).value
    assert without["text"] == framed
    end = slm2_web("tokenize --model tiny", {"runs": [{"text": "<|im_end|>", "trusted": True}]}).value["ids"][
        0
    ]
    assert found["ids"].count(end) == 2  # the user's marker is text


# --- sampling --------------------------------------------------------------------------------------------


def test_sample(slm2_web: Slm2Web) -> None:
    logits = [2.0, 1.0, 0.0, -50.0]
    greedy = slm2_web("sample", {"logits": logits}).value
    assert greedy == {"kept_ids": [0], "probs": [1.0], "id": 0}
    params = {"temperature": 1, "top_k": 2}
    found = [
        slm2_web("sample", {"logits": logits, "params": params, "seed": "7", "position": p}).value
        for p in range(9)
    ]
    assert {tuple(one["kept_ids"]) for one in found} == {(0, 1)}
    assert {one["id"] for one in found} == {0, 1}
    again = slm2_web("sample", {"logits": logits, "params": {**params, "seed": 7}, "position": 4}).value
    assert again == found[4]
    penalty = {"logits": logits, "context_ids": [0, 0], "params": {"repetition_penalty": 3}}
    assert slm2_web("sample", penalty).value["id"] == 1
    assert slm2_web("sample", {"logits": [0, 0, 9], "n_tokens": 2}).value["id"] == 0
    counted = {"logits": logits, "generated_ids": [0, 0], "params": {"frequency_penalty": 0.6, "logprobs": 1}}
    found_counted = slm2_web("sample", counted).value
    assert found_counted["id"] == 1
    assert [entry["id"] for entry in found_counted["logprobs"]["top"]] == [0]
    assert found_counted["logprobs"]["logprob"] < found_counted["logprobs"]["top"][0]["logprob"]
    present = {"logits": logits, "generated_ids": [0, 0], "params": {"presence_penalty": 1.5}}
    assert slm2_web("sample", present).value["id"] == 1
    assert slm2_web("sample", {"logits": logits, "params": {"banned_ids": [0, 1]}}).value["id"] == 2
    # Ties at the boundary of top-k: transformers keeps them all, llama.cpp the lower ids.
    for profile, kept_ids in (("transformers", [0, 1, 2]), ("llama.cpp", [0, 1])):
        tied = {"logits": [2, 1, 1, 0], "params": {"temperature": 1, "top_k": 2, "profile": profile}}
        assert slm2_web("sample", tied).value["kept_ids"] == kept_ids


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, "input.json"),
        ({"logits": []}, "input.json"),
        ({"logits": [True]}, "input.json"),
        ({"logits": ["NaN"]}, "input.json"),
        ({"logits": [10**400]}, "input.json"),
        ({"logits": [1], "params": {"temperature": 10**400}}, "input.params"),
        ({"logits": [1], "params": {"top_p": -(10**400)}}, "input.params"),
        ({"logits": [1], "params": {"max_tokens": 10**400}}, "input.params"),
        ({"logits": [1], "position": 10**400}, "input.json"),
        ({"logits": [1], "context_ids": [10**400]}, "input.token_id"),
        ({"logits": [1e39, 0]}, "device.bad_logits"),
        ({"logits": [1], "context_ids": [1]}, "input.token_id"),
        ({"logits": [1], "context_ids": [-1]}, "input.token_id"),
        ({"logits": [1], "generated_ids": [1]}, "input.token_id"),
        ({"logits": [1], "params": {"banned_ids": [0]}}, "input.params"),
        ({"logits": [1], "params": {"top_p": 0}}, "input.params"),
        ({"logits": [1], "params": []}, "input.json"),
        ({"logits": [1], "params": {"seed": 1}, "seed": 1}, "input.json"),
        ({"logits": [1], "seed": -1}, "input.params"),
        ({"logits": [1], "position": -1}, "input.json"),
        ({"logits": [1], "position": 2**64}, "input.json"),
        ({"logits": [1], "n_tokens": 2}, "input.json"),
        ({"logits": [1], "temperature": 1}, "input.json"),
    ],
)
def test_sample_refuses(slm2_web: Slm2Web, request_: Any, code: str) -> None:
    error = slm2_web("sample", request_).error
    assert error["code"] == code
    assert len(error["message"]) < 500


def test_a_value_nested_to_the_end_of_the_stack_is_refused(slm2_web: Slm2Web) -> None:
    """What json can just read, an error message may not be able to write."""
    for depth in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit() + 10):
        nested = b"[" * depth + b"]" * depth
        error = slm2_web("sample", b'{"logits":[1],"position":' + nested + b"}").error
        assert error["code"] == "input.json"


# --- replies ---------------------------------------------------------------------------------------------


def test_generate_writes_a_transcript_that_replays_equal(slm2_web: Slm2Web) -> None:
    made = slm2_web("generate --model tiny --context 100", {**ASK, "params": SAMPLED}).value
    assert made["request"]["messages"] == ASK["messages"]
    assert made["request"]["max_seq_len"] == 100
    assert made["request"]["budget_tokens"] == 96
    assert made["prompt_ids"] == slm2_web("render --model tiny", ASK).value["ids"]
    assert made["ledger"]["prompt_tokens"] == len(made["prompt_ids"])
    assert made["reasoning"] is None
    assert len(made["logit_digests"]) == len(made["generated_ids"])
    assert made["executor"]["name"] == "reference"
    assert slm2_web("replay", made).value == {"equal": True}
    again = slm2_web("generate --model tiny --context 100", {**ASK, "params": SAMPLED}).value
    assert (again["sha256"], again["generated_ids"]) == (made["sha256"], made["generated_ids"])


@pytest.mark.parametrize(
    ("path", "new", "place"),
    [
        (["generated_ids", 0], 5, "generated_ids[0]"),
        (["logit_digests", 0], "0" * 64, "logit_digests[0]"),
        (["request", "params", "max_tokens"], 77, "sha256"),
        (["request", "messages", 0, "content"], "Hello there?", "prompt_ids["),
        (["request", "max_seq_len"], 1 << 20, "request.max_seq_len"),
        (["request", "budget_tokens"], 200, "ledger"),
        (["ledger", "left_tokens"], 7, "ledger"),
        (["artifacts", "tokenizer_sha256"], "0" * 64, "artifacts.tokenizer_sha256"),
        (["artifacts", "weights_sha256", 0], "0" * 64, "artifacts.weights_sha256[0]"),
        (["text"], "something else", "text"),
        (["reason"], "context_full", "reason"),
    ],
)
def test_replay_names_what_was_changed(slm2_web: Slm2Web, path: list[Any], new: Any, place: str) -> None:
    made = slm2_web("generate --model tiny", {**ASK, "params": {"max_tokens": 1}}).value
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    result = slm2_web("replay --model tiny", made)
    assert result.status == 1
    assert result.lines[0]["equal"] is False
    if path == ["request", "params", "max_tokens"]:
        place = result.lines[0]["first_difference"]["place"]  # the reply goes on, or only the sha256 tells
    assert result.lines[0]["first_difference"]["place"].startswith(place)


def test_replay_finds_a_changed_seed_that_changes_nothing(slm2_web: Slm2Web) -> None:
    made = slm2_web("generate --model tiny", {**ASK, "params": {"max_tokens": 2}}).value
    made["request"]["params"]["seed"] = 1  # greedy: the same reply
    result = slm2_web("replay", made)
    assert (result.status, result.lines[0]["first_difference"]["place"]) == (1, "sha256")


def test_replay_refuses_what_is_no_transcript(slm2_web: Slm2Web) -> None:
    assert slm2_web("replay", {}).error["code"] == "format.transcript"
    made = slm2_web("generate --model tiny", {**ASK, "params": {"max_tokens": 1}}).value
    made["artifacts"]["model"] = "../tiny"
    assert slm2_web("replay", made).error["code"] == "format.transcript"
    made["artifacts"]["model"] = "another"
    assert slm2_web("replay", made).error["code"] == "input.model"


@pytest.mark.parametrize(
    "path", [("request", "params", "temperature"), ("timings", "prefill_ms"), ("request", "max_seq_len")]
)
def test_replay_refuses_a_number_that_no_float_holds(slm2_web: Slm2Web, path: tuple[str, ...]) -> None:
    good = slm2_web("generate --model tiny", {**ASK, "params": {"max_tokens": 1}}).value
    damaged = json.loads(json.dumps(good))
    at = damaged
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = 10**400
    error = slm2_web("replay", damaged).error
    assert (error["code"], error["detail"]["place"]) == ("format.transcript", ".".join(path))
    result = slm2_web("replay --jsonl", [damaged, good])
    assert (result.status, result.lines[1:]) == (2, [{"equal": True}])
    assert result.lines[0]["error"] == error


def test_generate_from_ids_and_from_a_raw_prompt(slm2_web: Slm2Web) -> None:
    ids = slm2_web("render --model tiny", ASK).value["ids"]
    text = slm2_web("render --model tiny", ASK).value["text"]
    wanted = slm2_web("generate --model tiny", {**ASK, "params": SAMPLED}).value
    from_ids = slm2_web("generate --model tiny", {"prompt_ids": ids, "params": SAMPLED}).value
    raw = slm2_web("generate --model tiny --no-template", {"prompt": text, "params": SAMPLED}).value
    plain = slm2_web("generate --model tiny --no-template", text.encode()).value
    for made in (from_ids, raw):
        assert made["request"]["prompt_ids"] == ids
        assert made["logit_digests"] == wanted["logit_digests"]
        assert slm2_web("replay", made).value == {"equal": True}
    assert plain["prompt_ids"] == ids  # markers in a raw prompt are control tokens
    assert slm2_web("generate --model tiny", text.encode()).error["code"] == "input.json"
    assert slm2_web("generate --model tiny --no-template", ASK).error["code"] == "input.json"


def test_generate_goes_on_from_a_reply_that_was_cut_short(slm2_web: Slm2Web) -> None:
    params = {**SAMPLED, "logprobs": 1, "invalid_utf8": "show", "frequency_penalty": 0.5, "max_tokens": 9}
    prompts = (ASK, {"prompt_ids": slm2_web("render --model tiny", ASK).value["ids"]})
    for asked in prompts:
        whole = slm2_web("generate --model tiny", {**asked, "params": params}).value
        ids = whole["generated_ids"]
        assert [len(entry["top"]) for entry in whole["logprobs"]] == [1] * len(ids)
        more = {"continue_ids": ids[:4], "budget_tokens": whole["request"].get("budget_tokens")}
        if asked is not ASK:
            del more["budget_tokens"]
        rest = slm2_web(
            "generate --model tiny", {**asked, **more, "params": {**params, "max_tokens": 5}}
        ).value
        assert rest["request"]["continue_ids"] == ids[:4]
        assert rest["generated_ids"] == ids[4:]
        assert rest["logit_digests"] == whole["logit_digests"][4:]
        assert rest["logprobs"] == whole["logprobs"][4:]
        for key in ("text", "reasoning", "tool_calls", "reason", "detail", "prompt_ids"):
            assert rest[key] == whole[key]
        assert slm2_web("replay", rest).value == {"equal": True}
        rest["request"]["continue_ids"][0] = 7
        result = slm2_web("replay", rest)
        assert result.status == 1
        assert result.lines[0]["first_difference"]["place"] == "logit_digests[0]"


def test_generate_within_a_language(slm2_web: Slm2Web) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
    response_format = {"type": "json_schema", "json_schema": {"schema": schema}}
    params = {**SAMPLED, "max_tokens": 100, "response_format": response_format}
    made = slm2_web("generate --model tiny", {**ASK, "params": params}).value
    assert made["reason"] == "stop_token"
    assert all(isinstance(item, bool) for item in json.loads(made["text"]))
    assert json.loads(made["request"]["params"]["response_format"]) == response_format
    assert slm2_web("replay", made).value == {"equal": True}
    other = json.dumps({"type": "regex", "pattern": "[a-z]+"})
    made["request"]["params"]["response_format"] = other
    result = slm2_web("replay", made)
    assert (result.status, result.lines[0]["equal"]) == (1, False)
    error = slm2_web("generate --model tiny", {**ASK, "params": {"response_format": {"type": "xml"}}}).error
    assert error["code"] == "input.response_format"


def test_explain_shows_log_probabilities_where_they_are_wanted(slm2_web: Slm2Web) -> None:
    result = slm2_web("generate --model tiny --explain", {**ASK, "params": {**SAMPLED, "logprobs": 0}})
    lines = result.err.splitlines()
    tokens = lines[lines.index("sampled     id, bytes, text") + 1 : -1]
    shown = [line.split()[-1] for line in tokens]
    assert shown == [f"{entry['logprob']:.3f}" for entry in result.value["logprobs"]]


def test_explain_shows_vocabulary_prompt_and_every_token(slm2_web: Slm2Web) -> None:
    result = slm2_web("generate --model tiny --explain", {**ASK, "params": SAMPLED})
    made = result.value
    assert "300 tokens" in result.err
    assert f"{len(made['prompt_ids'])} tokens" in result.err
    assert "  | <|im_start|>user" in result.err
    assert "  | Hello there!<|im_end|>" in result.err
    lines = result.err.splitlines()
    tokens = lines[lines.index("sampled     id, bytes, text") + 1 : -1]
    assert [int(line.split()[0]) for line in tokens] == made["generated_ids"]
    assert made["reason"] in lines[-1]


def test_explain_sends_no_control_characters_to_the_terminal(slm2_web: Slm2Web) -> None:
    hostile = {"messages": [{"role": "user", "content": "\x1b[2Jé\u202e\r"}], "params": {"max_tokens": 1}}
    result = slm2_web("generate --model tiny --explain", hostile)
    assert "\\x1b[2Jé\\u202e\\r" in result.err
    assert not set(result.err) & set("\x1b\u202e\r")


def test_without_a_terminal_there_is_no_progress(slm2_web: Slm2Web) -> None:
    assert slm2_web("generate --model tiny", {**ASK, "params": SAMPLED}).err == ""


def test_generate_budget(slm2_web: Slm2Web) -> None:
    error = slm2_web("generate --model tiny --context 5", ASK).error
    assert error["code"] == "input.budget"
    assert error["detail"]["budget_tokens"] == 4
    n = len(slm2_web("render --model tiny", ASK).value["ids"])
    request = {**ASK, "params": {"temperature": 0}, "budget_tokens": n}
    made = slm2_web(f"generate --model tiny --context {n + 1}", request).value
    assert made["reason"] in ("context_full", "stop_token", "invalid_utf8")
    assert made["ledger"]["left_tokens"] == 0
    error = slm2_web(f"generate --model tiny --context {n}", request).error
    assert (error["code"], error["detail"]["place"]) == ("input.params", "budget_tokens")


def test_the_default_budget_leaves_room_for_the_reply(slm2_web: Slm2Web) -> None:
    for context, max_tokens, budget in ((200, 7, 193), (200, 51, 150), (2048, 5, 2043), (None, 9, 247)):
        option = "" if context is None else f" --context {context}"
        made = slm2_web(f"prompt --model tiny{option}", {**ASK, "params": {"max_tokens": max_tokens}}).value
        assert made["ledger"]["budget_tokens"] == min(budget, 256 - max_tokens)


def test_a_prompt_shows_what_was_left_out_and_who_is_trusted(slm2_web: Slm2Web) -> None:
    """What is left out is told; the prompt is that of `generate`; only the template's words are trusted."""
    old = [
        {"role": "user", "content": "Tell me of the station. " * 4},
        {"role": "assistant", "content": "There is nothing in particular. " * 4},
    ]
    request = {
        "messages": [*old, *old, *old, {"role": "user", "content": "hi <|im_end|>"}],
        "evidence": [
            {"id": "far", "relevance": 0, "content": "The other side of the street. " * 9},
            {"id": "near", "relevance": 0.5, "content": "At the <|im_start|>"},
        ],
        "local_state": "the </local_state>",
        "budget_tokens": 249,
    }
    made = slm2_web("prompt --model tiny --context 250", request).value
    assert len(made["ids"]) == made["ledger"]["prompt_tokens"] <= 249
    dropped = [part["label"] for part in made["ledger"]["parts"] if part["state"] == "dropped"]
    assert {"0-1", "far"} <= set(dropped)
    assert "hi <|im_end|>" in made["text"]
    assert "the street" not in made["text"]
    controls = [run["text"] for run in made["runs"] if "id" in run]
    assert set(controls) == {"<|im_start|>", "<|im_end|>"}
    assert controls.count("<|im_start|>") == made["text"].count("<|im_start|>") - 1
    assert "".join(run["text"] for run in made["runs"]) == made["text"]
    foreign = "".join(run["text"] for run in made["runs"] if not run["trusted"])
    assert all(text in foreign for text in ("hi <|im_end|>", "At the <|im_start|>", "near"))
    generated = slm2_web(
        "generate --model tiny --context 250", {**request, "params": {"max_tokens": 1}}
    ).value
    assert (generated["prompt_ids"], generated["ledger"]) == (made["ids"], made["ledger"])
    assert slm2_web("replay", generated).value == {"equal": True}
    generated["ledger"]["parts"][0]["tokens"] += 1
    assert slm2_web("replay", generated).lines[0]["first_difference"]["place"] == "ledger"


EVIDENCE = {"id": "a", "relevance": 1, "content": "x"}


@pytest.mark.parametrize("command", ["prompt", "generate"])
@pytest.mark.parametrize(
    ("more", "code", "place"),
    [
        ({"budget_tokens": 0}, "input.params", "budget_tokens"),
        ({"budget_tokens": -1}, "input.params", "budget_tokens"),
        ({"budget_tokens": 1.0}, "input.params", "budget_tokens"),
        ({"budget_tokens": True}, "input.params", "budget_tokens"),
        ({"budget_tokens": "9"}, "input.params", "budget_tokens"),
        ({"budget_tokens": 10**400}, "input.params", "budget_tokens"),
        ({"budget_tokens": 256}, "input.params", "budget_tokens"),
        ({"budget_tokens": 1}, "input.budget", None),
        ({"local_state": 1}, "input.json", "local_state"),
        ({"local_state": "\udfff"}, "input.text", "local_state"),
        ({"evidence": {}}, "input.json", "evidence"),
        ({"evidence": ["x"]}, "input.json", "evidence[0]"),
        ({"evidence": [EVIDENCE, EVIDENCE]}, "input.json", "evidence[1].id"),
        ({"evidence": [{**EVIDENCE, "id": ""}]}, "input.json", "evidence[0].id"),
        ({"evidence": [{**EVIDENCE, "id": "x" * 9999}]}, "input.json", "evidence[0].id"),
        ({"evidence": [{**EVIDENCE, "id": 7}]}, "input.json", "evidence[0].id"),
        ({"evidence": [{**EVIDENCE, "id": "\ud800"}]}, "input.text", "evidence[0].id"),
        ({"evidence": [{**EVIDENCE, "relevance": "1"}]}, "input.json", "evidence[0].relevance"),
        ({"evidence": [{**EVIDENCE, "relevance": True}]}, "input.json", "evidence[0].relevance"),
        ({"evidence": [{**EVIDENCE, "relevance": 10**400}]}, "input.json", "evidence[0].relevance"),
        ({"evidence": [{**EVIDENCE, "content": None}]}, "input.json", "evidence[0].content"),
        ({"evidence": [{"id": "a", "content": "x"}]}, "input.json", "evidence[0].relevance"),
        ({"evidence": [{**EVIDENCE, "more": 1}]}, "input.json", "evidence[0].more"),
        ({"evidence": [{**EVIDENCE, "id": str(i)} for i in range(1001)]}, "input.json", "evidence"),
        ({"preserve_thinking": "yes"}, "template.options", None),
        ({"messages": [{"role": "user", "content": "x" * 10**6}]}, "input.budget", None),
        ({"messages": [ASK["messages"][0]] * 9}, "template.order", None),
    ],
)
def test_nonsense_beside_the_messages(
    slm2_web: Slm2Web, command: str, more: dict[str, Any], code: str, place: str | None
) -> None:
    error = slm2_web(f"{command} --model tiny", {**ASK, **more}).error
    assert (error["code"], error["detail"].get("place")) == (code, place)
    assert error["message"].isprintable()
    assert len(error["message"]) < 500
    assert slm2_web("prompt --model tiny", ASK).value["ids"]


def test_jsonl_answers_every_line_and_reuses_the_model(slm2_web: Slm2Web) -> None:
    asked = {**ASK, "params": SAMPLED}
    result = slm2_web(
        "generate --model tiny --jsonl", [asked, {"messages": 1}, asked, {**ASK, "params": {"top_k": -1}}]
    )
    assert result.status == 2  # the worst of the lines
    first, second, third, fourth = result.lines
    assert first["sha256"] == third["sha256"]
    assert third["timings"]["reused_tokens"] == len(first["prompt_ids"]) - 1
    assert (second["error"]["code"], fourth["error"]["code"]) == ("template.order", "input.params")
    assert result.err == ""
    replayed = slm2_web("replay --jsonl", [first, third])
    assert (replayed.status, replayed.lines) == (0, [{"equal": True}, {"equal": True}])
    first["text"] += "x"
    replayed = slm2_web("replay --jsonl", [first, third])
    assert (replayed.status, [line["equal"] for line in replayed.lines]) == (1, [False, True])


def test_jsonl_lines_that_are_no_json(slm2_web: Slm2Web) -> None:
    data = b'{"text":"a"}\n\nplain\n{"text":"\\ud800"}\n\xff\n' + b"[" * 50_000 + b'\n{"text":"a"}'
    result = slm2_web("tokenize --model tiny --jsonl", data)
    assert result.status == 2
    codes = [line["error"]["code"] if "error" in line else line["ids"] for line in result.lines]
    assert codes[0] == codes[-1] != []
    assert codes[1:-1] == ["input.json", "input.json", "input.text", "input.json", "input.json"]


# --- bad input -------------------------------------------------------------------------------------------

BAD_JSON = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"messages":[],"messages":[]}',
    b'{"messages":[NaN]}',
    b"[" * 200_000,
    b'{"a":' * 200_000,
    b'{"messages":1e999}',
    b"\xef\xbb\xbf{}",
    b'{"messages":[{"role":"user","content":"x"}],"n":1}',
    b'{"messages":[{"role":"user","content":"x"}],"\\ud800":1}',
    b'{"tools":[]}',
]


@pytest.mark.parametrize("data", BAD_JSON)
@pytest.mark.parametrize("command", ["render", "generate"])
def test_bad_json(slm2_web: Slm2Web, command: str, data: bytes) -> None:
    error = slm2_web(f"{command} --model tiny", data).error
    assert error["code"] == "input.json"
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("command", "request_", "code"),
    [
        ("render", {"messages": [{"role": "user", "content": "\ud800"}]}, "input.text"),
        ("render", {"messages": [{"role": "\udfff", "content": "x"}]}, "template.role"),
        ("render", {"messages": [{"role": "user"}]}, "template.content"),
        ("render", {"messages": ["x"]}, "template.message"),
        ("render", {"messages": {}}, "template.order"),
        ("render", {"messages": []}, "template.order"),
        ("render", {"messages": [{"role": "user", "content": "x", "more": 1}]}, "template.message"),
        ("render", {**ASK, "tools": [{"name": "f"}]}, "template.tools"),
        ("render", {**ASK, "tools": "["}, "template.tools"),
        ("render", {**ASK, "enable_thinking": True}, "template.options"),
        ("render", {**ASK, "enable_thinking": 0}, "template.options"),
        ("render", {**ASK, "budget_tokens": 9}, "input.json"),
        ("render", {"messages": [{"role": "user", "content": None}]}, "template.content"),
        ("render", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "template.content"),
        ("render", {"messages": [{"role": 1, "content": "x"}]}, "template.role"),
        ("render", {"messages": [{"role": "tool", "content": "x"}]}, "template.role"),
        ("render", {**ASK, "add_generation_prompt": 1}, "input.json"),
        ("tokenize", {"text": "a\udc80"}, "input.text"),
        ("tokenize", {"text": 1}, "input.json"),
        ("tokenize", {"text": "a", "bytes_hex": "61"}, "input.json"),
        ("tokenize", {}, "input.json"),
        ("tokenize", {"bytes_hex": "6"}, "input.json"),
        ("tokenize", {"bytes_hex": "ff"}, "input.text"),
        ("tokenize", {"runs": [{"text": "a"}]}, "input.json"),
        ("tokenize", {"runs": [{"text": "a", "trusted": 1}]}, "input.json"),
        ("detokenize", {"ids": [1.0]}, "input.json"),
        ("detokenize", {"ids": [True]}, "input.json"),
        ("detokenize", {"ids": [1], "special": "both"}, "input.json"),
        ("generate", {**ASK, "prompt_ids": [1]}, "input.json"),
        ("generate", {"prompt_ids": []}, "input.budget"),
        ("generate", {"prompt_ids": [10**9]}, "input.token_id"),
        ("generate", {"prompt_ids": [-1]}, "input.token_id"),
        ("generate", {**ASK, "params": {"temperature": "hot"}}, "input.params"),
        ("generate", {**ASK, "params": {"stop": ["\ud800"]}}, "input.params"),
        ("generate", {**ASK, "params": {"n": 2}}, "input.params"),
        ("generate", {**ASK, "params": None}, "input.json"),
        ("generate", {**ASK, "continue_ids": 7}, "input.json"),
        ("generate", {**ASK, "continue_ids": ["7"]}, "input.json"),
        ("generate", {**ASK, "continue_ids": [10**400]}, "input.token_id"),
        ("generate", {**ASK, "continue_ids": [-1]}, "input.token_id"),
        ("generate", {**ASK, "continue_ids": [7] * 300}, "input.json"),
        ("generate", {"prompt_ids": [1], "continue_ids": [-1]}, "input.token_id"),
        ("generate", {"prompt_ids": [1], "continue_ids": {}}, "input.json"),
        ("generate", {"prompt_ids": None}, "input.json"),
    ],
)
def test_bad_requests(slm2_web: Slm2Web, command: str, request_: Any, code: str) -> None:
    error = slm2_web(f"{command} --model tiny", request_).error
    assert error["code"] == code
    assert error["message"].isprintable()


def test_input_that_is_too_large(slm2_web: Slm2Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "MAX_INPUT_BYTES", 100)
    assert slm2_web("tokenize --model tiny", {"text": "x" * 100}).error["code"] == "input.json"
    assert slm2_web("tokenize --model tiny", b"x" * 101).error["code"] == "input.json"
    assert len(slm2_web("tokenize --model tiny", b"x" * 100).value["ids"]) > 1
    result = slm2_web("tokenize --model tiny --jsonl", [{"text": "x" * 1000}, {"text": "a"}])
    assert [list(line) for line in result.lines] == [["error"], ["ids"]]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(10**400)])
    | st.floats()
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("text", "ids", "runs", "messages", "role", "content", "logits", "params", "seed"),
                    *("trusted", "temperature", "position", "context_ids", "tools", "tool_calls", "evidence"),
                    *("reasoning_content", "local_state", "budget_tokens", "id", "relevance"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(st.lists(json_values, max_size=8), st.sampled_from(["tokenize", "detokenize", "render", "prompt"]))
def test_any_json_is_answered(slm2_web: Slm2Web, values: list[Any], command: str) -> None:
    result = slm2_web(f"{command} --model tiny --jsonl", values)
    assert len(result.lines) == len(values)
    assert result.err == ""
    result = slm2_web("sample --jsonl", values)
    assert len(result.lines) == len(values)


# --- models ----------------------------------------------------------------------------------------------


def test_an_unknown_model_lists_what_is_there(slm2_web: Slm2Web) -> None:
    error = slm2_web("tokenize --model huge", b"").error
    assert error["code"] == "input.model"
    assert error["detail"]["allowed"] == ["tiny"]
    assert "tiny" in error["message"]
    for name in ("", "..", "../tiny/nothing", "/nowhere/x"):
        assert cli.run(["tokenize", "--model", name]) == 2


def test_a_model_by_path(slm2_web: Slm2Web, packed_tiny: Path) -> None:
    assert (
        slm2_web(f"tokenize --model {packed_tiny}", b"a").value
        == slm2_web("tokenize --model tiny", b"a").value
    )


def test_without_a_models_folder(slm2_web: Slm2Web, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLM2_MODELS", str(tmp_path / "none"))
    assert slm2_web("tokenize --model tiny", b"").error["detail"]["allowed"] == []


@pytest.mark.parametrize(
    ("file", "command", "code"),
    [
        ("manifest.json", "tokenize", "format.manifest"),
        ("tokenizer.slm2tok", "tokenize", "format.model_file"),
        ("weights", "generate", "format.model_file"),
    ],
)
@pytest.mark.parametrize("how", ["cut", "flipped"])
def test_a_damaged_model(
    slm2_web: Slm2Web,
    packed_tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    file: str,
    command: str,
    code: str,
    how: str,
) -> None:
    shutil.copytree(packed_tiny, tmp_path / "tiny")
    (path,) = (tmp_path / "tiny").glob(f"{file}*")
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 0x80
    path.write_bytes(data)
    monkeypatch.setenv("SLM2_MODELS", str(tmp_path))
    assert (
        slm2_web(f"{command} --model tiny", {**ASK} if command == "generate" else b"a").error["code"] == code
    )
    path.unlink()
    wanted = "input.model" if file == "manifest.json" else "format.model_file"
    assert (
        slm2_web(f"{command} --model tiny", {**ASK} if command == "generate" else b"a").error["code"]
        == wanted
    )


# --- the process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", ["", "nonsense", "tokenize", "generate --model tiny --executor cpu", "sample --no"]
)
def test_wrong_usage_is_2_and_says_how(slm2_web: Slm2Web, arguments: str) -> None:
    result = slm2_web(arguments)
    assert (result.status, result.out) == (2, b"")
    assert "Usage: slm2-web" in result.err


def test_help_and_version(slm2_web: Slm2Web) -> None:
    for arguments in ("--help", "--version", *(f"{name} --help" for name in cli.cli.commands)):
        result = slm2_web(arguments)
        assert result.status == 0
        assert result.out


def test_a_process_of_its_own_writes_utf8_json_whatever_the_locale(packed_tiny: Path) -> None:
    with spawn(["render", "--model", "tiny"], packed_tiny.parent) as process:
        request = {"messages": [{"role": "user", "content": "é 漢 \u2028"}]}
        out, err = process.communicate(json.dumps(request).encode(), timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert "é 漢 \u2028".encode() in out
    assert out.endswith(b"}\n")


def test_a_broken_pipe_is_quiet(packed_tiny: Path) -> None:
    with spawn(["tokenize", "--model", "tiny", "--jsonl"], packed_tiny.parent) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b'{"text":"a"}\n')
        process.stdin.flush()
        assert process.stdout.readline()
        process.stdout.close()
        process.stdin.write(b'{"text":"a"}\n')
        process.stdin.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


def with_streams(shell: str, models: Path) -> subprocess.CompletedProcess[bytes]:
    """A command whose standard streams are what the shell makes of them; $0 is `python -m slm2_web.cli`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py"), "SLM2_MODELS": str(models)}
    command = ["sh", "-c", shell.replace("slm2-web", f"{sys.executable} -m slm2_web.cli")]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("shell", "words"),
    [
        (
            "echo a | slm2-web tokenize --model tiny >/dev/full",
            b"slm2-web: stdout: No space left on device\n",
        ),
        ("slm2-web --help >/dev/full", b"No space left on device\n"),
        ("echo a | slm2-web tokenize --model tiny >&-", b"slm2-web: stdout is closed\n"),
        ("slm2-web tokenize --model tiny <&-", b"slm2-web: stdin is closed\n"),
        ("slm2-web tokenize --model tiny --jsonl <&-", b"slm2-web: stdin is closed\n"),
        ("echo { | slm2-web tokenize --model tiny 2>/dev/full", b""),
        ("echo { | slm2-web tokenize --model tiny 2>&-", b""),
        ("slm2-web nonsense 2>/dev/full", b""),
        ("slm2-web tokenize --model $(printf %04096d 0)/x", b"File name too long: "),
    ],
)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_stream_that_can_not_be_used_is_2(packed_tiny: Path, shell: str, words: bytes) -> None:
    done = with_streams(shell, packed_tiny.parent)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr
    assert done.stderr.count(b"\n") == bool(words)


def test_a_missing_stderr_leaves_stdout_to_the_answer(packed_tiny: Path) -> None:
    ask = json.dumps({**ASK, "params": {"max_tokens": 1}})
    done = with_streams(f"echo '{ask}' | slm2-web generate --model tiny --explain 2>&-", packed_tiny.parent)
    assert done.returncode == 0
    assert json.loads(done.stdout)["reason"]


def test_help_that_nobody_reads_is_141(packed_tiny: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    command = [sys.executable, "-m", "slm2_web.cli", "--help"]
    done = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_bug_is_not_an_answer() -> None:
    """Python ends with 1 after a traceback, and 1 is `no`."""
    program = "from slm2_web.cli import app; app.run = lambda arguments: 1 / 0; app.main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "py")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"ZeroDivisionError" in done.stderr


@pytest.mark.parametrize(
    ("when", "number"),
    [("reading", signal.SIGINT), ("generating", signal.SIGINT), ("generating", signal.SIGTERM)],
)
def test_ctrl_c_is_cancelled_with_130_and_no_traceback(
    packed_tiny: Path, when: str, number: signal.Signals
) -> None:
    arguments = ["generate", "--model", "tiny", "--jsonl", "--explain"]
    with spawn(arguments, packed_tiny.parent) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(json.dumps({**ASK, "params": {"max_tokens": 1}}).encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline()  # the model is loaded, the first line answered
        if when == "generating":
            request = json.dumps({**ASK, "params": {"max_tokens": 1}}).encode() + b"\n"
            process.stdin.write(request * 500)
            process.stdin.flush()
            assert process.stdout.readline()
        else:
            time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        assert process.wait(60) == 130
    text = err.decode()
    assert "Traceback" not in text
    assert json.loads(text.splitlines()[-1]) == {
        "error": {"code": "cancelled", "message": "interrupted", "detail": {}}
    }


# --- the docs --------------------------------------------------------------------------------------------


def test_every_command_option_and_status_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    sections = {part.split("\n", 1)[0].strip("` "): part for part in page.split("\n## ")[1:]}
    for name, command in cli.cli.commands.items():
        assert name in sections, name
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                assert f"`slm2-web {name} {parameter.human_readable_name}`" in sections[name]
                continue
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert f"`{option}" in sections[name], (name, option)
    for status in (
        stdio.EXIT_DONE,
        stdio.EXIT_NO,
        stdio.EXIT_ERROR,
        stdio.EXIT_INTERRUPTED,
        stdio.EXIT_BROKEN_PIPE,
    ):
        assert f"| {status} |" in page
    assert "`SLM2_MODELS`" in page
