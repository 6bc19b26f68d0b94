"""LICENSES.txt of the site: each part with its version, its licence, and where its source is; then the texts.

The site redistributes other people's work. Their licences ask for notices (BSD, MIT), for the text
(Apache-2.0) or for the way to the source (MPL-2.0).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from slm2_web.compile.assets import Asset
from slm2_web.manifest import Manifest

Part = Sequence[tuple[str, str]]  # (what, value)

# Where the source code of an asset is kept by its authors; the asset itself is what they built of it.
SOURCE_CODE: Mapping[str, str] = {
    "pyodide": "https://github.com/pyodide/pyodide, which names all that it is built from",
    "numpy": "https://github.com/numpy/numpy, built by https://github.com/pyodide/pyodide-recipes",
    "regex": "https://github.com/mrabarnett/mrab-regex, built by https://github.com/pyodide/pyodide-recipes",
    "markdown-it": "https://github.com/markdown-it/markdown-it, which names what is bundled with it",
    "dompurify": "https://github.com/cure53/DOMPurify",
}
_LICENSE_FILE = re.compile(r"[^/]+\.dist-info/(?:licenses/.+|LICEN[CS]E[^/]*|COPYING[^/]*|NOTICE[^/]*)")
_TITLE = "What this folder holds, and under which licences"
_RULE = "=" * 80


def ours(version: str) -> Part:
    """The part that this project is."""
    return (
        ("slm2_web", version),
        ("files", "*.html, sw.js, web/, worker/, wheels/"),
        ("licence", "Apache-2.0; the text is below"),
        ("source", "the files themselves; of the wheel, in the project's repository"),
    )


def of_asset(asset: Asset, runtime: str, placed: str | None = None) -> Part:
    """A part of the runtime: a tarball's members; or a wheel, the whole or, as `placed`, a part of it."""
    is_wheel = asset.file.endswith(".whl")
    version = re.match(rf"{re.escape(asset.name)}-([^-]+?)(?:\.tgz$|-)", asset.file)
    files = f"{runtime}/{asset.file}, unchanged"
    if placed not in (None, asset.file):
        files = f"{runtime}/{placed}: files of {asset.file}, each unchanged or as bytecode"
    if not is_wheel:
        files = (
            f"{runtime}/ without the wheels; unchanged, but for pyodide-lock.json and the standard library"
        )
    return (
        (asset.name, version[1] if version else asset.file),
        ("files", files),
        ("licence", asset.license),
        ("source", SOURCE_CODE[asset.name]),
        *(("from", str(source)) for source in asset.sources),
        ("sha256", asset.sha256),
    )


def of_script(asset: Asset, path: str) -> Part:
    """A member of a tarball, as it is, under another name."""
    version = asset.file.removeprefix(f"{asset.name}-").removesuffix(".tgz")
    return (
        (asset.name, version),
        ("files", f"{path}, unchanged"),
        ("licence", asset.license),
        ("source", SOURCE_CODE[asset.name]),
        *(("from", str(source)) for source in asset.sources),
        ("sha256", asset.sha256),
    )


def of_python(version: str, runtime: str, stdlib: str) -> Part:
    """CPython, which the runtime's WebAssembly module and its standard library are."""
    return (
        ("CPython", version),
        ("files", f"{runtime}/pyodide.asm.wasm"),
        ("files", f"{stdlib}, without modules that are of no use here, and some as bytecode"),
        ("licence", "PSF-2.0: https://docs.python.org/3/license.html"),
        ("source", "https://github.com/python/cpython, with the patches of Pyodide"),
    )


def of_model(manifest: Manifest, folder: str, assets: Mapping[str, Asset]) -> Part:
    """A packed model."""
    source = manifest.source
    found = next((asset for asset in assets.values() if asset.sha256 == source.sha256), None)
    return (
        (manifest.title, manifest.name),
        ("files", f"{folder}/"),
        ("licence", manifest.license),
        ("source", f"{source.file}, of which these files are another form, made by slm2_web"),
        *(("from", str(place)) for place in (found.sources if found else ())),
        ("sha256", source.sha256),
    )


def texts_in(wheel: Path) -> dict[str, str]:
    """The texts that a wheel brings in its metadata: "WHEEL: FILE" -> text."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if _LICENSE_FILE.fullmatch(name)]
        return {
            f"{wheel.name}: {name.partition('/')[2]}": archive.read(name).decode("utf-8", "replace")
            for name in sorted(names)
        }


def page(parts: Sequence[Part], texts: Mapping[str, str]) -> str:
    """The file."""
    lines = [_TITLE, _RULE]
    for (name, version), *rest in parts:
        lines += ["", f"{name} {version}"]
        lines += [f"    {what:<9} {value}" for what, value in rest]
    for name, text in texts.items():
        lines += ["", _RULE, name, _RULE, "", text.strip()]
    return "\n".join(lines) + "\n"
