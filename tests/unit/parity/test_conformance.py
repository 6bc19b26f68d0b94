"""The conformance kit: written, marked, and met by implementations that share no code with ours."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from slm2_web import cli
from slm2_web.compile.conformance import verify, write_kit
from slm2_web.compile.vocabulary import byte_alphabet
from slm2_web.errors import FormatError, InputError
from slm2_web.parity import suite
from slm2_web.parity.baseline import open_subject
from slm2_web.parity.subject import Subject

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def kit(subject: Subject, parity_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quick kit of the tiny model."""
    out = tmp_path_factory.mktemp("kit") / "kit"
    asyncio.run(write_kit(out, subject, parity_model, "quick", list(suite.STAGES)))
    return out


@pytest.fixture
def copy(kit: Path, tmp_path: Path) -> Path:
    """A kit of the test's own."""
    shutil.copytree(kit, tmp_path / "kit")
    (tmp_path / "kit" / "results").mkdir()
    return tmp_path / "kit"


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def answer(kit: Path, stage: str, results: list[Any]) -> None:
    text = "".join(json.dumps(result) + "\n" for result in results)
    (kit / "results" / f"{stage}.jsonl").write_text(text, "utf-8")


def right(kit: Path, stage: str) -> list[Any]:
    return [{"id": each["id"], "output": each["output"]} for each in lines(kit / f"{stage}.jsonl")]


def test_what_lies_in_a_kit(kit: Path, subject: Subject) -> None:
    index = json.loads((kit / "index.json").read_text("utf-8"))
    assert list(index["stages"]) == list(suite.STAGES)
    for name, entry in index["stages"].items():
        assert len(lines(kit / entry["file"])) == entry["vectors"] == suite.STAGES[name].sizes["quick"]
        assert f"## {name}" in (kit / "SPEC.md").read_text("utf-8")
    assert (kit / "template.jinja").is_file()
    assert (kit / "model" / "manifest.json").is_file()
    vocabulary = json.loads((kit / "model" / "vocabulary.json").read_text("utf-8"))
    assert len(vocabulary["tokens"]) == vocabulary["n_tokens"] == subject.tokenizer.n_tokens
    for left, right, merged in vocabulary["merges"]:
        assert vocabulary["tokens"][left] + vocabulary["tokens"][right] == vocabulary["tokens"][merged]


def test_right_answers_in_any_order(copy: Path) -> None:
    for stage in suite.STAGES:
        answer(copy, stage, right(copy, stage)[::-1])
    marked = verify(copy)
    assert marked["equal"] is True
    assert list(marked["stages"]) == list(suite.STAGES)


def test_the_first_difference(copy: Path) -> None:
    results = right(copy, "tokenizer")
    results[3]["output"] = {"ids": [1]}
    results[5]["output"] = {"ids": [1.5]}
    del results[7]
    answer(copy, "tokenizer", results)
    marked = verify(copy)
    stage = marked["stages"]["tokenizer"]
    assert marked["equal"] is False
    assert (stage["checked"], stage["missing"], stage["different"]) == (119, 1, 2)
    first = stage["first_difference"]
    assert first["id"] == "tokenizer-00003"
    assert first["found"] == {"ids": [1]}
    assert first["expected"] == lines(copy / "tokenizer.jsonl")[3]["output"]


def test_one_is_not_true(copy: Path) -> None:
    results = right(copy, "tokenizer")
    at = next(i for i, each in enumerate(results) if 1 in each["output"].get("ids", ()))
    results[at]["output"]["ids"] = [True if i == 1 else i for i in results[at]["output"]["ids"]]
    answer(copy, "tokenizer", results)
    assert verify(copy)["stages"]["tokenizer"]["different"] == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1]\n", "line 1"),
        ('{"id": "tokenizer-00000"}\n', "line 1"),
        ("{\n", "line 1"),
        ('{"id": "nobody", "output": {}}\n', "nobody"),
        ('{"id": "tokenizer-00000", "output": 1}\n' * 2, "again"),
        ("\xff", "line 1"),
    ],
)
def test_results_that_are_none(copy: Path, text: str, found: str) -> None:
    (copy / "results" / "tokenizer.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match=found) as caught:
        verify(copy)
    assert caught.value.code == "format.vectors"


def test_a_kit_that_was_changed(copy: Path) -> None:
    answer(copy, "stream", right(copy, "stream"))
    path = copy / "stream.jsonl"
    path.write_text(path.read_text("utf-8").replace('"ending":null', '"ending":1', 1), "utf-8")
    with pytest.raises(FormatError, match="digest"):
        verify(copy)
    (copy / "index.json").write_text("{}", "utf-8")
    with pytest.raises(FormatError, match=r"index\.json"):
        verify(copy)


def test_no_results(copy: Path) -> None:
    with pytest.raises(InputError, match="no results"):
        verify(copy)


def test_a_folder_of_somebody_else_s(subject: Subject, parity_model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="--out"):
        asyncio.run(write_kit(tmp_path, subject, parity_model, "quick", ["stream"]))
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_on_the_command_line(
    parity_model: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    out = tmp_path / "kit"
    model = ["--model", str(parity_model)]
    assert cli.run(["vectors", "--out", str(out), *model, "--size", "quick", "--stages", "stream"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["stages"].keys() == {"stream"}
    (out / "results").mkdir()
    results = right(out, "stream")
    answer(out, "stream", results)
    assert cli.run(["vectors", "--verify", str(out)]) == 0
    answer(out, "stream", results[1:])
    assert cli.run(["vectors", "--verify", str(out)]) == 1
    assert cli.run(["vectors"]) == 2
    assert cli.run(["vectors", "--out", str(out), "--stages", "no"]) == 2


def test_sampling_in_javascript(copy: Path) -> None:
    """sampling.mjs was written from SPEC.md alone."""
    node = shutil.which("node")
    assert node, "no Node"
    done = subprocess.run(
        [node, HERE / "sampling.mjs"],
        input=(copy / "sampling.jsonl").read_bytes(),
        capture_output=True,
        check=True,
        timeout=120,
    )
    (copy / "results" / "sampling.jsonl").write_bytes(done.stdout)
    marked = verify(copy)
    assert marked["stages"]["sampling"]["first_difference"] is None
    assert marked["equal"]


def hugging_face(vocabulary: dict[str, Any]) -> tokenizers.Tokenizer:
    """The vocabulary of vocabulary.json in `tokenizers`, without added tokens."""
    spelled = {byte: char for char, byte in byte_alphabet().items()}
    tokens = ["".join(spelled[byte] for byte in bytes.fromhex(token)) for token in vocabulary["tokens"]]
    added = {token_id for token_id, _ in vocabulary["added"]}
    vocab = {token: i for i, token in enumerate(tokens) if token and i not in added}
    merges = [(tokens[left], tokens[right]) for left, right, _ in vocabulary["merges"]]
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    if vocabulary["normalizer"] == "nfc-9.0":
        made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(vocabulary["split"]), "isolated")
    bytes_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_level])
    made.decoder = decoders.ByteLevel()
    return made


def test_untrusted_text_by_hugging_face(packed_smollm2: Path, tmp_path: Path) -> None:
    """The default model's ids and pieces, by `tokenizers` from vocabulary.json."""
    subject = asyncio.run(open_subject(packed_smollm2))
    kit = tmp_path / "kit"
    asyncio.run(write_kit(kit, subject, packed_smollm2, "reduced", ["tokenizer"]))
    vocabulary = json.loads((kit / "model" / "vocabulary.json").read_text("utf-8"))
    oracle = hugging_face(vocabulary)
    known = {bytes.fromhex(token)[0] for token in vocabulary["tokens"] if len(token) == 2}
    results = []
    for record in lines(kit / "tokenizer.jsonl"):
        made = record["input"]
        if made["op"] != "encode" or made["trusted"]:
            continue
        text = made["text"]
        if not set(text.encode("utf-8")) <= known:
            output: Any = {"error": "input.character"}
        else:
            encoded = oracle.encode(text, add_special_tokens=False)
            cut = oracle.pre_tokenizer.pre_tokenize_str(text)
            pieces = [text[start:end] for _, (start, end) in cut]
            data = text.encode("utf-8").hex()
            output = {"ids": encoded.ids, "show": data, "hide": data, "pieces": pieces}
        results.append({"id": record["id"], "output": output})
    (kit / "results").mkdir()
    answer(kit, "tokenizer", results)
    stage = verify(kit)["stages"]["tokenizer"]
    assert stage["different"] == 0, stage["first_difference"]
    assert stage["checked"] > 600
