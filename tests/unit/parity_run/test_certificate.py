"""Certificates: what is written is read again, and nothing else is taken."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from certificates import HASHES, all_kinds, cell, certificate, equal, stage
from slm2_web.errors import FormatError
from slm2_web.parity.certificate import MAX_BYTES, Certificate, parse, write

DIFFERENCE = "certificate.cells[1].stages[0].difference"


@pytest.mark.parametrize("made", [all_kinds(), equal()], ids=["all kinds", "equal"])
def test_what_is_written_is_read_again(made: Certificate) -> None:
    assert parse(write(made)) == made
    assert write(parse(write(made))) == write(made)


def test_verdicts_follow_from_digests() -> None:
    made = all_kinds()
    assert [each.verdict for each in made.cells] == ["equal", "differs", "failed", "absent", "failed"]
    assert made.verdict == "differs"
    assert equal().verdict == "equal"
    assert certificate(*(each for each in made.cells if each.verdict != "differs")).verdict == "failed"
    only_absent = certificate(cell("webkit", "webgpu", absence="no WebGPU"))
    assert only_absent.verdict == "failed", "nothing ran, so nothing is equal"


def test_a_stage_without_a_baseline_is_not_equal() -> None:
    made = certificate(cell("chromium", "wasm", stage("forward")), baseline=())
    assert read_error(write(made))["place"] == "certificate.cells[0].stages[0].verdict"


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    value = json.loads(write(all_kinds()))
    change(value)
    return json.dumps(value).encode()


def read_error(data: bytes) -> dict[str, Any]:
    with pytest.raises(FormatError) as caught:
        parse(data)
    assert caught.value.code == "format.certificate"
    assert set(caught.value.detail) == {"place", "found", "allowed"}
    return caught.value.detail


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(top: dict[str, Any]) -> None:
        place: Any = top
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (put("format", value="other"), "certificate.format"),
        (put("version", value=2), "certificate.version"),
        (put("version", value=True), "certificate.version"),
        (put("verdict", value="equal"), "certificate.verdict"),
        (put("made_at", value="yesterday"), "certificate.made_at"),
        (put("size", value="huge"), "certificate.size"),
        (put("site", value="A" * 64), "certificate.site"),
        (put("artifacts", value={}), "certificate.artifacts"),
        (put("artifacts", 0, "bytes", value=-1), "certificate.artifacts[0].bytes"),
        (put("artifacts", 0, "kind", value="secret"), "certificate.artifacts[0].kind"),
        (put("artifacts", 1, "path", value="models/tiny/manifest.json"), "certificate.artifacts"),
        (put("baseline", "stages", 0, "digest", value=HASHES["f"]), "certificate.cells[0].stages[0].verdict"),
        (put("baseline", "stages", 0, "name", value="../x"), "certificate.baseline.stages[0].name"),
        (put("baseline", "stages", 1, "name", value="tokenizer"), "certificate.baseline.stages"),
        (put("baseline", "implementation", "name", value=7), "certificate.baseline.implementation.name"),
        (put("cells", value=[]), "certificate.cells"),
        (put("cells", 0, "executor", value="cuda"), "certificate.cells[0].executor"),
        (put("cells", 0, "threads", value=0), "certificate.cells[0].threads"),
        (put("cells", 0, "isolated", value=1), "certificate.cells[0].isolated"),
        (put("cells", 0, "seconds", value="1"), "certificate.cells[0].seconds"),
        (put("cells", 0, "verdict", value="absent"), "certificate.cells[0].verdict"),
        (put("cells", 0, "absence", value="lazy"), "certificate.cells[0].absence"),
        (put("cells", 0, "browser", "name", value=""), "certificate.cells[0].browser.name"),
        (put("cells", 0, "notes", value=["a\ud800"]), "certificate.cells[0].notes[0]"),
        (put("cells", 0, "more", value=1), "certificate.cells[0].more"),
        (put("cells", 0, "stages", 0, "vectors", value=119), "certificate.cells[0].stages[0].verdict"),
        (put("cells", 0, "stages", 0, "digest", value=None), "certificate.cells[0].stages[0].verdict"),
        (put("cells", 0, "stages", 1, "name", value="tokenizer"), "certificate.cells[0].stages[1].verdict"),
        (put("cells", 1, "stages", 0, "verdict", value="equal"), "certificate.cells[1].stages[0].verdict"),
        (put("cells", 1, "stages", 0, "difference", value={}), f"{DIFFERENCE}.index"),
        (put("cells", 2, "stages", 1, "failure", value=None), "certificate.cells[2].stages[1].failure"),
        (put("cells", 4, "browser", "name", value="firefox"), "certificate.cells"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_place(change: Callable[[dict[str, Any]], object], place: str) -> None:
    assert read_error(changed(change))["place"] == place


def test_a_difference_of_an_equal_stage_is_refused() -> None:
    value = json.loads(write(all_kinds()))
    first = value["cells"][1]["stages"][0]["difference"]
    value["cells"][0]["stages"][0]["difference"] = copy.deepcopy(first)
    assert read_error(json.dumps(value).encode())["place"] == "certificate.cells[0].stages[0].difference"


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"[]", b"null", b"\xff", b'{"format": "slm2-parity-certificate"', b"[" * 100_000),
        b'{"format": 1, "format": 2}',
        b'{"format": NaN}',
        b" " * (MAX_BYTES + 1),
    ],
    ids=range(9),
)
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    read_error(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


@given(data=st.data(), value=JSON)
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject, value: Any) -> None:
    top = json.loads(write(all_kinds()))
    path = data.draw(st.sampled_from(places(top)[1:]))
    put(*path, value=value)(top)
    try:
        found = parse(json.dumps(top).encode())
    except FormatError:
        return
    assert parse(write(found)) == found


@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    read_error(data)
