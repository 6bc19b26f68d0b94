"""The documentation site: docs/*.md and the package's docstrings as pages, by Sphinx, in one folder.

docs/site/ holds Sphinx's settings and the theme. What Sphinx warns of is an error, and so is what `problems`
finds in the pages: a link or an anchor that leads nowhere, an inline script or style, anything that would be
loaded from elsewhere. The same sources give the same bytes.

In an installed wheel the pages are there already, and Sphinx isn't needed.
"""

from __future__ import annotations

import hashlib
import html.parser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from slm2_web.compile.assets import locked
from slm2_web.compile.folders import paths_in, replacing
from slm2_web.compile.place import Place
from slm2_web.compile.site import EPOCH, SiteError

# What the theme's pages load or what docs.js asks for; Sphinx writes more, for its own themes.
_STATIC: Final = ("docs.css", "docs.js")
_KEPT: Final = re.compile(
    rf".*\.html|search\.json|_downloads/.*|_static/(?:{'|'.join(map(re.escape, _STATIC))})|_images/.*"
)
_TEXTS: Final = (".css", ".html", ".js", ".json")
# Of the site around docs/: what pages may lead to.
_OUTSIDE: Final = ("../index.html", "../parity.html", "../tokenizer.html", "../web/icon.svg")
# How long pages are kept that are not made any more: another process may still copy them.
_STAYS_S: Final = 3600
_LOADS: Final = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}


def install_docs(place: Place, say: Callable[[str], None]) -> Path:
    """The folder of the pages, up to date. It stays as it is while another process makes newer ones.

    Raises: SiteError when Sphinx isn't installed, or warns of something, or a page is not as it should be.
    """
    if not place.is_checkout:
        return place.sources / "docs"
    store = place.work / "build" / "docs"
    store.mkdir(parents=True, exist_ok=True)
    with locked(store / "lock", lambda: say("waiting for another build of the documentation")):
        made = store / _key(place.sources)
        pages, names = made / "html", made / "names"
        if not (names.is_file() and names.read_text("utf-8").splitlines() == paths_in(pages)):
            say("building the documentation")
            with replacing(made) as new:
                build_docs(place.sources, new / "html")
                (new / "names").write_text("\n".join(paths_in(new / "html")), "utf-8")
        os.utime(made)
        _prune(store, time.time() - _STAYS_S)
        return pages


def _prune(store: Path, before_s: float) -> None:
    """Removes what nobody has asked for since then; who has asked is done with it."""
    for folder in store.iterdir():
        if folder.is_dir() and folder.stat().st_mtime < before_s:
            shutil.rmtree(folder)


def _key(root: Path) -> str:
    """A digest of all that the pages are made from, the generator and all that it may use included."""
    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    digest = hashlib.sha256(repr((sys.version, packages)).encode())
    for folder, pattern in (("docs", "**/*"), ("py/slm2_web", "**/*.py")):
        for path in sorted((root / folder).glob(pattern)):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(root).as_posix().encode() + b"\0")
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:32]


def build_docs(root: Path, out: Path) -> None:
    """The pages of the checkout at `root` in the new folder `out`. Raises: SiteError."""
    if importlib.util.find_spec("sphinx") is None or importlib.util.find_spec("myst_parser") is None:
        raise SiteError(
            "the documentation needs Sphinx and myst-parser; allowed: the packages of "
            "requirements-site.lock, or a site without it (--no-docs)"
        )
    with tempfile.TemporaryDirectory() as trees:
        command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-E", "-q"]
        command += ["-d", trees, "-c", str(root / "docs" / "site"), str(root / "docs"), str(out)]
        done = subprocess.run(
            command,
            cwd=root,
            env=os.environ
            | {"SOURCE_DATE_EPOCH": EPOCH, "PYTHONHASHSEED": "0", "PYTHONPATH": str(root / "py")}
            # Sphinx sets the locale, and ends where there is none of that name; C is everywhere.
            | {"NO_COLOR": "1", "LC_ALL": "C", "PYTHONUTF8": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    if done.returncode:
        raise SiteError(f"the documentation could not be built:\n{done.stdout}{done.stderr}")
    for path in sorted(out.rglob("*"), reverse=True):
        name = path.relative_to(out).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif not _KEPT.fullmatch(name):
            path.unlink()
        elif path.suffix in _TEXTS:
            # Sphinx writes lines as the system does.
            path.write_bytes(path.read_bytes().replace(b"\r\n", b"\n"))
    found = [f"{page}: {problem}" for page, problem in problems(out)]
    if found:
        raise SiteError("the documentation's pages are not as they should be:\n" + "\n".join(found))


class _Page(html.parser.HTMLParser):
    """The anchors of a page, where it leads, and what its policy would not let it do."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []  # how, where
        self.problems: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        if "id" in values:
            if values["id"] in self.ids:
                self.problems.append(f"the id {values['id']} is there twice")
            self.ids.add(values["id"])
        for name, value in values.items():
            if name == "style" or name.startswith("on"):
                self.problems.append(f"<{tag} {name}=…>: found an inline style or handler; allowed: none")
            if (tag, name) in _LOADS:
                self.links.append(("loads", value))
            elif name == "href":
                self.links.append(("leads to", value))
        if tag == "style" or (tag == "script" and "src" not in values):
            self.problems.append(f"<{tag}>: found an inline one; allowed: none")


def problems(folder: Path) -> Iterator[tuple[str, str]]:
    """(page, what is wrong) for each link that leads nowhere and for all that the pages' policy forbids."""
    pages: dict[Path, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.resolve()] = _Page()
        page.feed(path.read_text("utf-8"))
    outside = {(folder / name).resolve() for name in _OUTSIDE}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve()).as_posix()
        yield from ((name, problem) for problem in page.problems)
        for how, link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                if how == "loads" or parts.scheme not in ("https", "mailto"):
                    yield name, f"{how} {link}; allowed: files of the site, and links to https:"
                continue
            target = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
            if target in outside and not parts.fragment:
                continue
            if not target.is_file():
                yield name, f"{how} {link}, which is not there"
            elif target in pages and urllib.parse.unquote(parts.fragment) not in {"", *pages[target].ids}:
                yield name, f"{how} {link}, an anchor that is not there"
