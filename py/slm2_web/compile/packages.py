"""What is given away: a wheel that builds sites without a checkout, and the page's modules for npm.

    wheel   the package as its build backend makes it, and beside the modules `slm2_web/tree/`: web/,
            worker/, assets.toml, LICENSE, and the documentation, built (place.py finds them there)
    npm     package.json, README.md, LICENSE, the modules that a page imports and those that they import,
            where a site has them, vendor/LICENSES.txt, and types/ made by TypeScript

The same checkout gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from slm2_web import __version__
from slm2_web.compile import browser_wheel, vendor
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.docs import install_docs
from slm2_web.compile.folders import copy, paths_in, replacing
from slm2_web.compile.integrity import modules_of
from slm2_web.compile.place import TREE, NoSources, Place
from slm2_web.compile.site import SiteError, build_wheel, shipped_sources

# The modules that a page may import, by the names that it imports them by. isolation.js and offline.js are
# not among them: their service worker is the site's, so they are to be had from there.
_EXPORTS: Final = {
    ".": "client.js",
    "./client.js": "client.js",
    "./slm2-chat.js": "slm2-chat.js",
    "./openai.js": "openai.js",
    "./prompt-api.js": "prompt-api.js",
    "./markdown-view.js": "markdown-view.js",
}
# Says what the modules use of vendor/.
_VENDOR_TYPES: Final = "vendor.d.ts"
# An element defines itself when it is imported.
_SIDE_EFFECTS: Final = ("slm2-chat.js",)


def make_wheel(place: Place, out: Path, say: Callable[[str], None]) -> Path:
    """The wheel's path in the folder `out`. Raises: NoSources outside of a checkout; SiteError."""
    root = _checkout(place)
    docs = install_docs(place, say)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        whole = build_wheel(root, Path(folder))
        files = browser_wheel.files_in(whole)
        for name, path in _tree(root, docs):
            files[f"slm2_web/{TREE}/{name}"] = path.read_bytes()
        return browser_wheel.write_wheel(files, Path(folder) / "whole").replace(out / whole.name)


def _tree(root: Path, docs: Path) -> Iterator[tuple[str, Path]]:
    """(name in the tree, file) of all that a site is made from."""
    for name in ("assets.toml", "LICENSE"):
        yield name, root / name
    for page in paths_in(docs):
        yield f"docs/{page}", docs / page
    for path in shipped_sources(root):
        yield path.relative_to(root).as_posix(), path


def make_npm(place: Place, out: Path) -> Path:
    """The folder `out`, written anew: what `npm pack` makes a package of.

    It needs Node.js and the checkout's node_modules, for TypeScript. Raises: NoSources outside of a checkout;
    SiteError when `out` holds something else, or TypeScript can't make the types; AssetError for the scripts
    of vendor/.
    """
    root = _checkout(place)
    if out.exists() and any(out.iterdir()) and not _is_ours(out):
        raise SiteError(
            f"{out} holds something that is not this package; allowed: a new or empty folder, or it"
        )
    with replacing(out) as new, tempfile.TemporaryDirectory() as folder:
        site = Path(folder)
        for path in shipped_sources(root):
            copy(path, site / path.relative_to(root))
        licences = vendor.add_scripts(site, Fetcher.from_environment(root, place.work))
        for name in modules_of(site, [f"web/{file}" for file in _EXPORTS.values()]):
            copy(site / name, new / name)
        text = "\n".join(f"{name}\n\n{licence}" for name, licence in licences.items())
        (new / vendor.FOLDER / "LICENSES.txt").write_text(text, "utf-8", newline="\n")
        copy(root / "LICENSE", new / "LICENSE")
        _make_types(root, new, sorted(set(_EXPORTS.values())))
        (new / "package.json").write_text(json.dumps(_package(), indent=2) + "\n", "utf-8", newline="\n")
        (new / "README.md").write_text(_readme(), "utf-8", newline="\n")
    return out


def _package() -> dict[str, Any]:
    return {
        "name": "slm2-web",
        "version": __version__,
        "description": "Small language models in the browser: the same tokens, bit for bit, everywhere.",
        "license": "Apache-2.0",
        "type": "module",
        "exports": {
            name: {"types": f"./types/web/{file.removesuffix('.js')}.d.ts", "default": f"./web/{file}"}
            for name, file in _EXPORTS.items()
        }
        | {"./package.json": "./package.json"},
        "sideEffects": [f"./web/{file}" for file in _SIDE_EFFECTS],
        "files": ["web", "worker", vendor.FOLDER, "types", "LICENSE", "README.md"],
    }


def _readme() -> str:
    modules = "\n".join(
        f"- `slm2-web{name[1:]}`: `web/{file}`" for name, file in _EXPORTS.items() if name != "./client.js"
    )
    return f"""# slm2-web

A small language model in the visitor's browser: the same tokens, bit for bit, everywhere.

    import {{ SLM2 }} from "slm2-web";

    const slm = await SLM2.load({{ root: new URL("/slm2/", location.href) }});
    const chat = slm.chat([{{ role: "user", content: "What is 2+2?" }}]);
    for await (const delta of chat) document.body.append(delta);

Or the element: `import "slm2-web/slm2-chat.js";` and `<slm2-chat root="/slm2/"></slm2-chat>`.

{modules}

`root` is a site that `slm2-web site --out DIR` has written (`pip install` the wheel), served from your page's
own origin: the workers, the runtime, this package's Python and the models come from there. Take module and
site from one version.
"""


def _make_types(root: Path, new: Path, modules: list[str]) -> None:
    """types/**.d.ts of the modules and of what they import."""
    compiler = root / "node_modules" / "typescript" / "bin" / "tsc"
    node = shutil.which("node")
    if node is None or not compiler.is_file():
        raise SiteError(
            "TypeScript is not there; allowed: a checkout after `npm ci`, with Node.js 20 or later"
        )
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tsconfig.json"
        config.write_text(
            json.dumps(
                {
                    "extends": str((root / "tsconfig.json").absolute()),
                    "compilerOptions": {
                        "noEmit": False,
                        "declaration": True,
                        "emitDeclarationOnly": True,
                        "outDir": str((new / "types").absolute()),
                        "rootDir": str(root.absolute()),
                        "typeRoots": [str((root / "node_modules").absolute())],
                        "stripInternal": True,
                    },
                    "include": [],
                    "exclude": [],
                    "files": [str((root / "web" / file).absolute()) for file in (*modules, _VENDOR_TYPES)],
                }
            ),
            "utf-8",
        )
        done = subprocess.run(
            [node, str(compiler), "-p", str(config)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise SiteError(f"TypeScript could not make the types:\n{done.stdout}{done.stderr}")


def _checkout(place: Place) -> Path:
    if not place.is_checkout:
        raise NoSources(f"{place.sources} is no checkout; packages are made in one")
    return place.sources


def _is_ours(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "package.json").read_bytes())["name"] == "slm2-web")
    except (OSError, ValueError, LookupError, TypeError):
        return False
