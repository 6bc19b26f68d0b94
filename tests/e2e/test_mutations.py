"""Planted faults, each in a file that the browser loads: the page's suite finds it and names the stage.

Each is planted in a copy of the site, where its hash is made right, so that only the suite can find it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from e2e.conftest import ROOT, Serve, link
from planted import compiled_tokenizer, exchange_two_ranks, letters_end_early
from slm2_web.manifest import parse_manifest

MODEL = "models/parity-qwen3"
BASELINE = json.loads((ROOT / "web" / "parity-baseline.json").read_bytes())["models"]["parity-qwen3"][
    "stages"
]

# The stages that need no weights, and are the same on each device.
TEXT = ("tokenizer", "template", "prompt", "sampling", "stream")
ALL = (*TEXT, "forward", "chat")

RUN = """async ({ root, executor, size, stages }) => {
  const { openSuite, runCell } = await import(new URL("web/parity-suite.js", root));
  return runCell(await openSuite(), { executor, size, stages: stages.map((name) => `${name}.qwen3`) });
}"""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is planted, and which stages may find it: `named` has to, nothing beyond `touched` may.

    size: where the rare cases are, `reduced`.
    """

    plant: Callable[[Path, pytest.MonkeyPatch], None]
    named: str
    touched: tuple[str, ...] = ()
    stages: tuple[str, ...] = TEXT
    size: str = "quick"
    executor: str = "wasm"


def written(path: Path, data: bytes) -> None:
    """Another content in place of a file that others link to."""
    path.unlink()
    path.with_name(f"{path.name}.gz").unlink(missing_ok=True)
    path.write_bytes(data)


def edited(text: str, old: str, new: str) -> str:
    """The text with one place changed."""
    assert text.count(old) == 1, (old, text.count(old))
    return text.replace(old, new)


def listed(site: Path, name: str, data: bytes) -> None:
    """A file of the site replaced, and site.json made right."""
    written(site / name, data)
    facts = json.loads((site / "site.json").read_bytes())
    facts["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    written(site / "site.json", json.dumps(facts).encode())


def in_manifest(site: Path, entry: Callable[[Any], Any], data: bytes) -> None:
    """A model's file replaced, and the manifest made right."""
    path = site / MODEL / "manifest.json"
    manifest = json.loads(path.read_bytes())
    own = entry(manifest)
    written(site / MODEL / own["file"], data)
    own |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    listed(site, f"{MODEL}/manifest.json", json.dumps(manifest).encode())


def in_wheel(file: str, old: str, new: str) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """One line of the package that the page unpacks: its Python, where the source takes the bytecode's place,
    and its shaders."""

    def plant(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (wheel,) = (site / "wheels").glob("*/slm2_web-*.whl")
        with zipfile.ZipFile(wheel) as whole:
            members = {info.filename: whole.read(info) for info in whole.infolist()}
        name = f"slm2_web/{file}"
        bytecode = members.pop(f"{name}c", None)
        source = (ROOT / "py" / name).read_bytes() if bytecode else members[name]
        members[name] = edited(source.decode(), old, new).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as changed:
            for path, data in members.items():
                changed.writestr(path, data)
        listed(site, wheel.relative_to(site).as_posix(), buffer.getvalue())

    return plant


def merge_rank(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_manifest(site, lambda manifest: manifest["tokenizer"], compiled_tokenizer(exchange_two_ranks))


def unicode_class(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with letters_end_early(monkeypatch):
        data = compiled_tokenizer(lambda data: None)
    in_manifest(site, lambda manifest: manifest["tokenizer"], data)


def flipped(site: Path) -> bytes:
    """The weights with one bit of one weight turned over."""
    manifest = parse_manifest((site / MODEL / "manifest.json").read_bytes())
    (shard,) = manifest.shards
    tensor = manifest.tensors["layers.1.attn_out"]
    data = bytearray((site / MODEL / shard.file).read_bytes())
    data[tensor.planes["quants"] + tensor.plane_bytes("quants") // 2] ^= 1
    return bytes(data)


def weight_bit(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_manifest(site, lambda manifest: manifest["weights"]["shards"][0], flipped(site))


FAULTS = {
    "one merge rank": Fault(merge_rank, "tokenizer", ("template", "prompt")),
    "one Unicode class": Fault(
        unicode_class, "tokenizer", ("template",), stages=("tokenizer", "sampling"), size="reduced"
    ),
    "one template branch": Fault(
        in_wheel(
            "template2/qwen3.py",
            '("TOOL_TURN", Event.TOOL): Step(_RESULT, "TOOL_TURN")',
            '("TOOL_TURN", Event.TOOL): Step(_RESULT[1:], "TOOL_TURN")',
        ),
        "template",
        stages=("tokenizer", "template"),
        size="reduced",
    ),
    "a tie at top-k": Fault(
        in_wheel(
            "sampling2/sampler.py",
            '_filter(filters.keep_top_k, "top_k")',
            '_filter(filters.keep_largest, "top_k")',
        ),
        "sampling",
    ),
    "the counter of random bits": Fault(
        in_wheel(
            "sampling2/rng.py",
            "philox4x32((position & _MASK, position >> 32, 0, 0)",
            "philox4x32(((position + 1) & _MASK, position >> 32, 0, 0)",
        ),
        "sampling",
    ),
    "a UTF-8 character released one byte early": Fault(
        in_wheel("tokenizer2/utf8.py", "(0xE1, 0xEC): (0x80, 0xBF, 2)", "(0xE1, 0xEC): (0x80, 0xBF, 1)"),
        "stream",
    ),
    "one weight bit": Fault(weight_bit, "forward", ("chat",), stages=ALL),
    # Two blocks have the same sum in either order: no start-up test of two sees this one.
    "a shader's sum order": Fault(
        in_wheel(
            "shaders/attn_quantize.wgsl",
            "for (var b = blocks; b < blocks + count; b++) {",
            "for (var k = 1u; k <= count; k++) {\n let b = blocks + count - k;",
        ),
        "forward",
        stages=("stream", "forward"),
        executor="webgpu",
    ),
}


@pytest.fixture(scope="module")
def folder(site: Path, serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Where copies of the site go, and where they are served."""
    out = tmp_path_factory.mktemp("mutations")
    (out / "blank.html").write_text("<!doctype html><title>mutations</title>")
    return out, serve(out).url


@pytest.fixture
def page(chromium: Browser, folder: tuple[Path, str]) -> Iterator[Page]:
    """An empty page in a browser that has never been here."""
    context: BrowserContext = chromium.new_context()
    page = context.new_page()
    page.goto(f"{folder[1]}blank.html")
    yield page
    context.close()


def copied(site: Path, folder: Path, name: str) -> Path:
    """A copy of the site without the large model."""
    out = folder / name
    shutil.copytree(site, out, copy_function=link, ignore=shutil.ignore_patterns("smollm2-*"))
    return out


def run(page: Page, url: str, stages: tuple[str, ...], size: str, executor: str) -> dict[str, Any]:
    """The cell that the page's suite makes of a site."""
    asked = {"root": url, "executor": executor, "size": size, "stages": stages}
    cell: dict[str, Any] = page.evaluate(RUN, asked)
    return cell


def differing(cell: dict[str, Any]) -> set[str]:
    """The stages that differ; each names the first record that does."""
    names = set()
    for stage in cell["stages"]:
        name = stage["name"].removesuffix(".qwen3")
        if stage["verdict"] == "equal":
            continue
        assert stage["verdict"] == "differs", stage["failure"]
        difference = stage["difference"]
        index = difference["index"]
        mark = BASELINE[name]["marks"][8 * index : 8 * index + 8]
        expected, found = difference["expected"], difference["found"]
        # What the page's own reference makes of it, where that is the baseline's; else the mark is known.
        assert expected["mark"] == mark if "mark" in expected else expected.keys() == found.keys()
        assert expected != found
        names.add(name)
    return names


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_by_its_stage(
    name: str, page: Page, site: Path, folder: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = FAULTS[name]
    out = copied(site, folder[0], name.replace(" ", "-").replace("'", ""))
    fault.plant(out, monkeypatch)
    cell = run(page, f"{folder[1]}{out.name}/", fault.stages, fault.size, fault.executor)
    assert cell["failure"] is None, cell["failure"]
    assert [stage["name"] for stage in cell["stages"]] == [f"{stage}.qwen3" for stage in fault.stages]
    found = differing(cell)
    assert fault.named in found
    assert found <= {fault.named, *fault.touched}
    assert cell["verdict"] == "differs"


def test_without_a_fault_no_stage_is_named(page: Page, site: Path, folder: tuple[Path, str]) -> None:
    out = copied(site, folder[0], "none")
    cell = run(page, f"{folder[1]}none/", ALL, "quick", "wasm")
    assert differing(cell) == set()
    assert cell["verdict"] == "equal"
    # The same bit without its hash made right: it never gets as far as a stage.
    data = flipped(out)
    written(out / MODEL / parse_manifest((out / MODEL / "manifest.json").read_bytes()).shards[0].file, data)
    page.evaluate("caches.delete('slm2-models')")
    cell = run(page, f"{folder[1]}none/", ("forward",), "quick", "wasm")
    assert (cell["verdict"], cell["stages"]) == ("failed", [])
    assert cell["failure"]["code"] == "format.model_file"


def test_the_order_of_lanes_is_found_at_start(
    page: Page, site: Path, folder: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order = "for (var i = 0u; i < LANES; i++) {"
    other = "for (var k = 1u; k <= LANES; k++) {\n let i = LANES - k;"
    in_wheel("shaders/matmul_q4_1.wgsl", order, other)(copied(site, folder[0], "lanes"), monkeypatch)
    cell = run(page, f"{folder[1]}lanes/", ("forward",), "quick", "webgpu")
    assert (cell["verdict"], cell["stages"]) == ("failed", [])
    assert cell["failure"]["code"] == "device.self_test"
    assert "matmul_q4_1" in cell["failure"]["message"]
