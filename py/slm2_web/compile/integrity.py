"""Subresource integrity: a page in which each script, module and style of its site has the hash of its bytes.

A module's `import` has no place for a hash, and an import map is an inline script, which a strict policy
forbids. So each module that a page comes to import is preloaded with its hash, before the script that imports
it: the browser keeps a module once per page, and one that is not what its hash says is none.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

_TAG = re.compile(r"<(?:script|link)\b[^>]*>")
_ATTRIBUTE = re.compile(r'\s([a-z]+)(?:="([^"]*)")?')
# Static imports and re-exports, and imports of a fixed name while the page runs, of our own sources.
_IMPORT = re.compile(
    r"""(?:^|[\s;}])(?:import|export)\s*(?:[\w*{][^'";()]*?from\s*)?["'](\.{1,2}/[^"']+)["']""", re.M
)
_LATER = re.compile(r"""(?<![\w.])import\(\s*["'](\.{1,2}/[^"']+)["']\s*\)""")
_COMMENT = re.compile(r"^\s*(?://|/?\*).*$", re.M)


def integrity_of(data: bytes) -> str:
    """The value of an `integrity` attribute for these bytes."""
    return f"sha384-{base64.b64encode(hashlib.sha384(data).digest()).decode()}"


def guard(site: Path, page: str) -> str:
    """The text of `page` of the folder `site`, with hashes on what it loads, and a preload of each module.

    A reference to a file that the site doesn't have stays as it is.
    """
    text = (site / page).read_text("utf-8")
    entries: list[str] = []
    preloaded: set[str] = set()

    def seal(match: re.Match[str]) -> str:
        tag = match[0]
        attributes = {name: value or "" for name, value in _ATTRIBUTE.findall(tag)}
        address = attributes.get("src") or attributes.get("href") or ""
        path = _path(page, address)
        is_script = tag.startswith("<script")
        if "integrity" in attributes or not (site / path).is_file() or not address:
            return tag
        if not is_script and attributes.get("rel") not in ("stylesheet", "modulepreload"):
            return tag
        if is_script and attributes.get("type") == "module":
            entries.append(path)
        if attributes.get("rel") == "modulepreload":
            preloaded.add(path)
        return f'{tag[:-1]} integrity="{integrity_of((site / path).read_bytes())}">'

    text = _TAG.sub(seal, text)
    missing = [path for path in modules_of(site, entries) if path not in preloaded and path not in entries]
    folder = posixpath.dirname(page)
    links = "".join(
        f'<link rel="modulepreload" href="{posixpath.relpath(path, folder or ".")}" '
        f'integrity="{integrity_of((site / path).read_bytes())}">\n    '
        for path in missing
    )
    at = re.search(r'<script\b[^>]*\btype="module"', text)
    return text if at is None else text[: at.start()] + links + text[at.start() :]


def modules_of(site: Path, entries: list[str]) -> list[str]:
    """The entries and every module of the site that they import, directly or not, in order."""
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(site, path)
    return sorted(found)


def _imports(site: Path, path: str) -> Iterator[str]:
    source = _COMMENT.sub("", (site / path).read_text("utf-8"))
    for address in _IMPORT.findall(source) + _LATER.findall(source):
        name = _path(path, address)
        if (site / name).is_file():
            yield name


def _path(page: str, address: str) -> str:
    """Where an address on a page leads, as a path in the site."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), address.partition("?")[0]))
