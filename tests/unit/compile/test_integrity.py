"""Hashes on what a page loads, and a preload of each module that it comes to import."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

from slm2_web.compile.integrity import _COMMENT, _IMPORT, _LATER, guard, integrity_of

PAGE = """<!doctype html>
<link rel="icon" href="web/icon.svg">
<link rel="stylesheet" href="web/style.css">
<link rel="modulepreload" href="web/part.js">
<script src="https://elsewhere.example/x.js"></script>
<script type="module" src="web/main.js"></script>
<script type="module" src="web/gone.js"></script>
"""
FILES = {
    "index.html": PAGE,
    "web/icon.svg": "<svg/>",
    "web/style.css": "p {}",
    "web/main.js": 'import { a } from "./part.js";\nexport {\n  b,\n} from "../other/deep.mjs";\n'
    'import "./side.js";\n'
    'const c = () => import("./late.js");\n// import "./comment.js";\n * import "./comment.js";\n'
    'const text = "see ./comment.js";\nimport gone from "./gone.js";',
    "web/part.js": "export const a = 1;",
    "web/side.js": 'import x from "./part.js";',
    "web/late.js": 'import "./later.js";',
    "web/later.js": 'export * from "./main.js";',
    "web/comment.js": "",
    "web/alone.js": "",
    "other/deep.mjs": "",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def sealed(text: str) -> dict[str, str]:
    """What has a hash, and which."""
    tags = re.findall(r'<(?:script|link)\b[^>]*(?:src|href)="([^"]+)"[^>]*integrity="([^"]+)"', text)
    assert len(dict(tags)) == len(tags)
    return dict(tags)


def test_everything_that_runs_has_its_hash(site: Path) -> None:
    text = guard(site, "index.html")
    names = {"style.css", "main.js", "part.js", "side.js", "late.js", "later.js"}
    expected = {f"web/{name}" for name in names} | {"other/deep.mjs"}
    assert sealed(text) == {name: integrity_of(FILES[name].encode()) for name in expected}
    digest = hashlib.sha384(FILES["web/main.js"].encode()).digest()
    assert sealed(text)["web/main.js"] == f"sha384-{base64.b64encode(digest).decode()}"
    # What isn't the site's, and what isn't run, stays as it was; the rest of the page does, too.
    for line in PAGE.splitlines()[:2] + PAGE.splitlines()[4:5] + PAGE.splitlines()[6:]:
        assert line in text
    # A preload comes before what imports it.
    assert text.index("other/deep.mjs") < text.index("web/main.js")


def test_a_page_in_a_folder(site: Path) -> None:
    (site / "docs").mkdir()
    (site / "docs/page.html").write_text('<script type="module" src="../web/side.js"></script>')
    text = guard(site, "docs/page.html")
    assert set(sealed(text)) == {"../web/side.js", "../web/part.js"}


def test_what_has_a_hash_keeps_it(site: Path) -> None:
    (site / "index.html").write_text('<link rel="stylesheet" href="web/style.css" integrity="sha384-own">')
    assert guard(site, "index.html") == '<link rel="stylesheet" href="web/style.css" integrity="sha384-own">'


def test_of_our_own_pages_nothing_is_left_out() -> None:
    """Each module of web/ that another one imports is found by the build's pattern."""
    web = Path(__file__).parents[3] / "web"
    for path in web.rglob("*.js"):
        source = path.read_text("utf-8")
        found = set(_IMPORT.findall(_COMMENT.sub("", source)) + _LATER.findall(_COMMENT.sub("", source)))
        wanted = set(re.findall(r'^(?:import|\}|export) .*?"(\.[^"]+)";$', source, re.M))
        assert wanted <= found, path
