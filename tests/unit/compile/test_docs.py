"""The documentation's pages: the same bytes again, and what is refused. tests/e2e looks at them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slm2_web.compile import docs
from slm2_web.compile.docs import build_docs, install_docs, problems
from slm2_web.compile.place import Place, find_place
from slm2_web.compile.site import SiteError
from slm2_web.errors import CODES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def pages() -> Path:
    """The documentation of this checkout."""
    return install_docs(find_place(), print)


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_same_sources_give_the_same_bytes(pages: Path, tmp_path: Path) -> None:
    build_docs(ROOT, tmp_path / "again")
    assert files_of(tmp_path / "again") == files_of(pages)


def test_every_page_is_there_and_none_is_left_without_a_link(pages: Path) -> None:
    sources = {
        path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    found = set(files_of(pages))
    downloads = [name for name in found if name.startswith("_downloads/")]
    assert [name.split("/")[-1] for name in downloads] == ["certificate.json"]
    assert found == sources | {"search.json", "_static/docs.css", "_static/docs.js", *downloads}
    index = (pages / "index.html").read_text("utf-8")
    for name in sources:
        assert f'href="{name}"' in index or name == "index.html", name
    assert list(problems(pages)) == []


def test_the_index_names_every_section(pages: Path) -> None:
    entries = json.loads((pages / "search.json").read_text("utf-8"))
    headings = {(page, heading) for page, _, _, heading, _ in entries}
    assert ("client", "Isolation without headers") in headings
    assert ("python", "slm2_web.session") in headings
    assert ("api/client", "web/client.js") in headings
    for page, anchor, *_ in entries:
        text = (pages / f"{page}.html").read_text("utf-8")
        assert not anchor or f'id="{anchor}"' in text, (page, anchor)


def test_typedefs_have_their_descriptions_and_nothing_is_empty() -> None:
    text = (ROOT / "docs/api/stored.md").read_text("utf-8")
    assert "`stored` says whether the whole file is there" in text
    for path in (ROOT / "docs/api").glob("*.md"):
        text = path.read_text("utf-8")
        assert "| Type Parameter |\n| ------ |\n\n" not in text, path.name


def test_troubleshooting_names_codes_that_are_there() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    named = set(re.findall(r"`((?:input|template|format|asset|device|protocol)\.[a-z0-9_]+)`", text))
    assert named <= CODES.keys()
    # What a visitor or a site's author can meet of the machine, the network and the storage.
    own = {code for code in CODES if code.split(".")[0] in ("asset", "device", "protocol")}
    assert own <= named


def test_lines_end_alike_where_sphinx_writes_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sphinx(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        # The one locale that every system has; Sphinx ends without it.
        assert options["env"]["LC_ALL"] == "C"
        out = Path(command[-1])
        out.mkdir()
        for name in ("index.html", "search.json"):
            (out / name).write_bytes(b"one\r\ntwo\r\n")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", sphinx)
    build_docs(ROOT, tmp_path / "out")
    assert files_of(tmp_path / "out") == dict.fromkeys(("index.html", "search.json"), b"one\ntwo\n")


def test_docstrings_become_pages(pages: Path) -> None:
    text = (pages / "python.html").read_text("utf-8")
    assert 'id="slm2_web.tokenizer2.tokenizer.Tokenizer.encode"' in text
    assert 'id="slm2_web.errors.InputError"' in text
    assert "system-message" not in text


def test_a_second_call_builds_nothing(pages: Path) -> None:
    said: list[str] = []
    assert install_docs(find_place(), said.append) == pages
    assert said == []


def test_pages_that_are_no_longer_whole_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of other sources stay, as another process may be copying them, until nobody can be."""
    made: list[Path] = []

    def build(root: Path, out: Path) -> None:
        made.append(out)
        out.mkdir()
        for name in ("index.html", "other.html"):
            (out / name).write_text("x", "utf-8")

    monkeypatch.setattr(docs, "build_docs", build)
    (tmp_path / "docs").mkdir()
    (tmp_path / "pyproject.toml").touch()
    place = Place(tmp_path, tmp_path)
    first = install_docs(place, print)
    assert install_docs(place, print) == first
    assert len(made) == 1
    (first / "other.html").unlink()
    assert install_docs(place, print) == first
    assert len(made) == 2
    assert (first / "other.html").is_file()
    (tmp_path / "docs" / "page.md").write_text("# Page", "utf-8")
    second = install_docs(place, print)
    assert second != first
    assert first.is_dir()
    os.utime(first.parent, (0, 0))
    assert install_docs(place, print) == second
    assert not first.exists()
    monkeypatch.setattr(sys, "version", "another")
    assert install_docs(place, print) != second


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "site", tmp_path / "docs" / "site")
    (tmp_path / "docs" / "index.md").write_text("# x\n\n[a](nowhere.md) [b](#nothing) [c](süd.md)\n", "utf-8")
    with pytest.raises(SiteError, match=r"could not be built") as caught:
        build_docs(tmp_path, tmp_path / "out")
    assert "nowhere.md" in str(caught.value)
    assert "süd.md" in str(caught.value)
    assert "'nothing'" in str(caught.value)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('<a href="gone.html">', "leads to gone.html, which is not there"),
        ('<a href="other.html#no">', "leads to other.html#no, an anchor that is not there"),
        ('<a href="#no">', "leads to #no, an anchor that is not there"),
        ('<a href="../secret.html">', "leads to ../secret.html, which is not there"),
        ('<a href="javascript:alert(1)">', "leads to javascript:alert(1); allowed"),
        ('<a href="http://example.org/">', "leads to http://example.org/; allowed"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js; allowed"),
        ('<link href="//example.org/x.css">', "loads //example.org/x.css; allowed"),
        ('<img src="gone.png">', "loads gone.png, which is not there"),
        ("<script>x()</script>", "<script>: found an inline one"),
        ("<style>p {}</style>", "<style>: found an inline one"),
        ('<p style="color: red">', "<p style=…>: found an inline style"),
        ('<p onclick="x()">', "<p onclick=…>: found an inline style or handler"),
        ('<p id="yes">', "the id yes is there twice"),
    ],
)
def test_what_a_page_may_not_have(body: str, problem: str, tmp_path: Path) -> None:
    good = '<p id="yes"><a href="other.html#yes"><a href="../index.html"><a href="https://example.org/">'
    (tmp_path / "other.html").write_text(good, "utf-8")
    (tmp_path / "page.html").write_text(good, "utf-8")
    assert list(problems(tmp_path)) == []
    (tmp_path / "page.html").write_text(good + body, "utf-8")
    ((page, found),) = problems(tmp_path)
    assert page == "page.html"
    assert problem in found


def test_without_sphinx_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SiteError, match=r"requirements-site\.lock.*--no-docs"):
        build_docs(ROOT, tmp_path / "out")


def test_an_installed_wheel_has_them_built(tmp_path: Path) -> None:
    assert install_docs(Place(tmp_path / "tree", tmp_path), print) == tmp_path / "tree" / "docs"


def test_the_javascript_pages_are_what_typedoc_makes(tmp_path: Path) -> None:
    """After a change of the modules' comments: node_modules/.bin/typedoc."""
    node = shutil.which("node")
    assert node, "Node.js is needed for this test"
    program = ROOT / "node_modules" / "typedoc" / "bin" / "typedoc"
    command = [node, str(program), "--logLevel", "Error", "--out", str(tmp_path / "api")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert files_of(tmp_path / "api") == files_of(ROOT / "docs" / "api")
