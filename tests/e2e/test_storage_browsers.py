"""Storage in the other browsers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.conftest import add_tiny, link
from e2e.faulty_server import Fault, FaultyServer
from e2e.storagepage import GUEST, split_weights
from slm2_web.browsers import Page, open_browser

NAME = "tokenizer.slm2tok"


@pytest.fixture(scope="module")
def server(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyServer]:
    """Serves the model `tiny` in four shards, and an empty page."""
    out = tmp_path_factory.mktemp("storage") / "site"
    shutil.copytree(site, out, copy_function=link)
    add_tiny(out, out.parent)
    split_weights(out / "models" / "tiny", 4)
    (out / "guest.html").write_text("<!doctype html>", "utf-8")
    running = FaultyServer(out)
    yield running
    running.close()


@pytest.fixture(params=["firefox", "webkit"])
def page(request: pytest.FixtureRequest, server: FaultyServer) -> Iterator[Page]:
    """A page of a browser that has never been here."""
    server.forget()
    with open_browser(request.param) as browser:
        page = browser.open(f"{server.url}guest.html")
        page.evaluate(f"(async () => {{ {GUEST} }})()")
        yield page


def fetch(page: Page) -> dict[str, Any]:
    """What the loader says and hands over."""
    result: dict[str, Any] = page.evaluate("fetchModel('tiny')")
    return result


def test_downloads_go_on_are_stored_and_heal(page: Page, server: FaultyServer) -> None:
    manifest = json.loads((server.root / "models/tiny/manifest.json").read_bytes())
    files = {each["file"]: each for each in [manifest["tokenizer"], *manifest["weights"]["shards"]]}
    total = files[NAME]["bytes"]
    cuts = [total * i // 11 for i in range(1, 11)]
    server.faults[NAME] = Fault(cuts=list(cuts))
    first = fetch(page)
    assert "code" not in first
    assert server.bytes_of(NAME) == list(zip([0, *cuts], [*cuts, total], strict=True))
    assert page.evaluate("storage.estimate().then(({ kind }) => kind)") == "cache"
    assert page.evaluate("storage.list()")[0]["complete"]

    server.forget()
    second = fetch(page)
    assert server.sent == []
    assert second["hashes"] == first["hashes"]
    assert second["warnings"] == []

    shard = sorted(files)[2]
    page.evaluate("flip(arg)", files[shard]["sha256"])
    healed = fetch(page)
    assert healed["hashes"] == first["hashes"]
    assert [warning["code"] for warning in healed["warnings"]] == ["asset.damaged"]
    assert server.bytes_of(shard) == [(0, files[shard]["bytes"])]
    assert {each.name for each in server.sent} == {shard}

    page.evaluate("storage.remove('*')")
    assert page.evaluate("storage.list()") == []
