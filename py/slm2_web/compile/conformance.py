"""The conformance kit: the parity suite's vectors for implementations in other languages, and their marking.

    DIR/index.json            what was written: artifacts, size, and each stage's file, count and digest
    DIR/SPEC.md               what each stage is, exactly
    DIR/template.jinja        the template of the family "compiled"
    DIR/STAGE.jsonl           {"id", "input", "output"} a line, canonical JSON
    DIR/model/                the packed model's files, and vocabulary.json, the same vocabulary in plain JSON
    DIR/results/STAGE.jsonl   what an implementation has made of it: {"id", "output"} a line

An implementation reads the inputs, writes the results, and `verify` says which differ first.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from slm2_web.compile.dfa import PATTERNS
from slm2_web.errors import FormatError, InputError
from slm2_web.packed import MANIFEST_FILE
from slm2_web.parity import suite
from slm2_web.parity.canonical import Digest, Json, canonical
from slm2_web.parity.subject import Size, Subject
from slm2_web.parity.template import SOURCE
from slm2_web.strictjson import NotJson, loads, show
from slm2_web.tokenizer2.merge import NO_RANK, Merger
from slm2_web.tokenizer2.tables import Tables, parse
from slm2_web.tokenizer2.tokenizer import Tokenizer

FORMAT: Final = "slm2-vectors"
INDEX_FILE: Final = "index.json"
SPEC_FILE: Final = "SPEC.md"
VOCABULARY_FILE: Final = "vocabulary.json"
RESULTS: Final = "results"
MAX_LINE_BYTES: Final = 16 << 20
MAX_INDEX_BYTES: Final = 1 << 20
_SPEC: Final = Path(__file__).with_name("conformance.md")


async def write_kit(
    out: Path,
    subject: Subject,
    model: Path,
    size: Size,
    stages: Sequence[str],
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """The index of the kit, which is written into `out`: a new folder, or an empty one, or a kit.

    Raises: InputError `input.params` for a folder that holds something else; what the stages raise.
    """
    _check_replaceable(out)
    out.mkdir(parents=True, exist_ok=True)
    written: dict[str, Any] = {}
    for name in stages:
        digest = Digest()
        total = suite.STAGES[name].sizes[size]
        with (out / f"{name}.jsonl").open("wb") as file:
            for index in range(total):
                line = canonical(await suite.record(subject, name, index, size))
                digest.add(line)
                file.write(line + b"\n")
        written[name] = {"file": f"{name}.jsonl", "vectors": total, "digest": digest.digest}
        say(f"{name}: {total} vectors")
    _copy_model(out / "model", subject, model)
    shutil.copyfile(_SPEC, out / SPEC_FILE)
    shutil.copyfile(SOURCE, out / SOURCE.name)
    index_json = {
        "format": FORMAT,
        "suite": suite.SUITE,
        "size": size,
        "artifacts": asdict(subject.artifacts),
        "max_seq_len": subject.max_seq_len,
        "eos_ids": list(subject.manifest.eos_ids),
        "stages": written,
    }
    (out / INDEX_FILE).write_text(json.dumps(index_json, indent=1) + "\n", "utf-8")
    return index_json


def verify(directory: Path) -> dict[str, Any]:
    """`{"equal", "stages": {STAGE: {"vectors", "checked", "equal", "missing", "first_difference"}}}`.

    Only stages that have results are there. `first_difference`: null, or `{"id", "input", "expected",
    "found"}` of the first vector that differs; `found` null for a vector without a result.

    Raises: FormatError `format.vectors` for a kit that is damaged, or results that are none;
        InputError `input.params` when there are no results at all.
    """
    index = _index(directory)
    stages: dict[str, Any] = {}
    for name, entry in index["stages"].items():
        results = directory / RESULTS / f"{name}.jsonl"
        if results.is_file():
            stages[name] = _verify_stage(directory / entry["file"], entry, results)
    if not stages:
        where = f"{RESULTS}/STAGE.jsonl"
        raise InputError(
            "input.params",
            f"{directory}: found no results; allowed: {where} of at least one stage",
            {"place": RESULTS, "found": "no results", "allowed": where},
        )
    return {"equal": all(stage["equal"] for stage in stages.values()), "stages": stages}


def vocabulary_json(tables: Tables) -> dict[str, Any]:
    """A vocabulary in plain JSON, for who doesn't read tokenizer.slm2tok.

    tokens: the bytes of each id in hexadecimal digits, "" where there is none; added: `[id, special]` of the
    added tokens; merges: `[left id, right id, merged id]`, lowest rank first; split: the pattern that cuts
    text into pieces; normalizer: "nfc-9.0", "none" or "as-received".
    """
    tokenizer = Tokenizer(tables)
    added = [[int(token_id), bool(special)] for token_id, special in tables.added.tolist()]
    is_added = {token_id for token_id, _ in added}
    offsets, blob = tables.offsets.tolist(), bytes(tables.blob)
    tokens = [blob[a:b] for a, b in pairwise(offsets)]
    ids = {data: token_id for token_id, data in enumerate(tokens) if data and token_id not in is_added}
    rank_of = Merger(tables.pair_base, tables.pair_slots, tables.merged).rank
    merges: list[list[int]] = [[] for _ in range(tables.merged.size)]
    for merged, data in enumerate(tokens):
        if merged in is_added:
            continue
        for cut in range(1, len(data)):
            pair = ids.get(data[:cut]), ids.get(data[cut:])
            if pair[0] is not None and pair[1] is not None:
                rank = rank_of(pair[0], pair[1])
                if rank < NO_RANK and tables.merged[rank] == merged:
                    merges[rank] = [pair[0], pair[1], merged]
    assert all(merges)
    return {
        "n_tokens": tokenizer.n_tokens,
        "tokens": [data.hex() for data in tokens],
        "added": added,
        "merges": merges,
        "split": PATTERNS[tables.split],
        "normalizer": tables.normalizer,
    }


def _copy_model(folder: Path, subject: Subject, model: Path) -> None:
    folder.mkdir(exist_ok=True)
    manifest = subject.manifest
    for name in (MANIFEST_FILE, manifest.tokenizer.file, *(shard.file for shard in manifest.shards)):
        shutil.copyfile(model / name, folder / name)
    tables = parse((model / manifest.tokenizer.file).read_bytes())
    text = json.dumps(vocabulary_json(tables), separators=(",", ":"))
    (folder / VOCABULARY_FILE).write_text(text + "\n", "utf-8")


def _check_replaceable(out: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        _index(out)
    except FormatError:
        allowed = "a new or empty folder, or a kit"
        detail = {"place": "--out", "found": str(out), "allowed": allowed}
        raise InputError("input.params", f"--out: found {out}; allowed: {allowed}", detail) from None


def _index(directory: Path) -> dict[str, Any]:
    """index.json, as far as `verify` uses it, checked. Raises: FormatError `format.vectors`."""
    path = directory / INDEX_FILE
    try:
        with path.open("rb") as file:
            found = loads(file.read(MAX_INDEX_BYTES + 1), max_bytes=MAX_INDEX_BYTES)
    except OSError as error:
        raise _bad(INDEX_FILE, str(error.strerror), "a kit's index") from None
    except NotJson as error:
        raise _bad(INDEX_FILE, str(error), "JSON") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT or found.get("suite") != suite.SUITE:
        raise _bad(INDEX_FILE, show(found)[:60], f"format {FORMAT}, suite {suite.SUITE}")
    stages = found.get("stages")
    if not isinstance(stages, dict) or not set(stages) <= set(suite.STAGES):
        raise _bad(f"{INDEX_FILE}: stages", show(stages), " | ".join(suite.STAGES))
    for name, entry in stages.items():
        good = isinstance(entry, dict) and entry.get("file") == f"{name}.jsonl"
        if not good or not isinstance(entry.get("digest"), str) or not isinstance(entry.get("vectors"), int):
            raise _bad(f"{INDEX_FILE}: {name}", show(entry), "file, vectors, digest")
    return found


def _verify_stage(path: Path, entry: dict[str, Any], results: Path) -> dict[str, Any]:
    found: dict[str, Json] = {}
    for number, line in enumerate(_lines(results), 1):
        place = f"{RESULTS}/{results.name}, line {number}"
        if not isinstance(line, dict) or set(line) != {"id", "output"} or not isinstance(line["id"], str):
            raise _bad(place, show(line), '{"id", "output"}')
        if line["id"] in found:
            raise _bad(place, f"{line['id']} again", "each id once")
        found[line["id"]] = line["output"]
    digest = Digest()
    first: dict[str, Any] | None = None
    checked = missing = wrong = 0
    for record in _lines(path):
        digest.add(canonical(record))
        if record["id"] not in found:
            missing += 1
            first = first or {**_told(record), "found": None}
            continue
        checked += 1
        answer = found.pop(record["id"])
        if not _is_equal(answer, record["output"]):
            wrong += 1
            first = first or {**_told(record), "found": answer}
    if digest.digest != entry["digest"]:
        raise _bad(path.name, f"digest {digest.digest}", f"{entry['digest']}, which {INDEX_FILE} says")
    for name in found:
        raise _bad(f"{RESULTS}/{results.name}", show(name), f"an id of {path.name}")
    return {
        "vectors": entry["vectors"],
        "checked": checked,
        "missing": missing,
        "different": wrong,
        "equal": first is None,
        "first_difference": first,
    }


def _told(record: dict[str, Any]) -> dict[str, Any]:
    return {"id": record["id"], "input": record["input"], "expected": record["output"]}


def _is_equal(answer: Json, expected: Json) -> bool:
    """Whether both are the same JSON: a float equals nothing, true is not 1."""
    try:
        return canonical(answer) == canonical(expected)
    except (AssertionError, UnicodeEncodeError):
        return False


def _lines(path: Path) -> Iterator[Any]:
    """The JSON value of each line. Raises: FormatError `format.vectors`."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield loads(line, max_bytes=MAX_LINE_BYTES)
    except OSError as error:
        raise _bad(path.name, str(error.strerror), "a file of lines") from None
    except NotJson as error:
        raise _bad(f"{path.name}, line {number}", str(error), "JSON") from None


def _bad(place: str, found: str, allowed: str) -> FormatError:
    return FormatError(
        "format.vectors",
        f"{place}: found {found}; allowed: {allowed}",
        {"place": place, "found": found, "allowed": allowed},
    )
