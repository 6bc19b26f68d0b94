"""Models on this machine: fetched and packed into build/models/NAME; again only when something changed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from slm2_web.compile.assets import Fetcher
from slm2_web.compile.models import MODELS
from slm2_web.compile.progress import Meter
from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import parse_manifest


def models_folder(root: Path) -> Path:
    """Where packed models lie."""
    return root / "build" / "models"


def install_model(name: str, root: Path, fetcher: Fetcher, say: Callable[[str], None]) -> Path:
    """The packed model's directory, up to date.

    Raises: InputError `input.model` for a name that is not in the table; AssetError; FormatError.
    """
    spec = MODELS.get(name)
    if spec is None:
        raise InputError("input.model", f"no model is called {name!r}; there are: {', '.join(MODELS)}")
    out = models_folder(root) / name
    stamp = out.parent / f".{name}.stamp"
    key = hashlib.sha256(repr((spec, _code_digest())).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text("utf-8") == key and _looks_whole(out):
        return out
    source = fetcher.fetch(spec.asset)
    # Not before it is needed: it loads numpy.
    from slm2_web.compile.pack import pack_gguf

    say(f"packing {name} into {out}")
    meter = Meter(name)
    stamp.unlink(missing_ok=True)
    pack_gguf(
        source, out, spec, lambda stage, done, total: meter(done, total) if stage == "weights" else None
    )
    meter.close("packed")
    stamp.write_text(key, "utf-8")
    return out


def _code_digest() -> str:
    """A digest of this package. Most of it has no say in a model's bytes, but packing takes 2 s only."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".json")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _looks_whole(directory: Path) -> bool:
    """Every file of the manifest is there in its size; `site` and the loaders check the bytes."""
    try:
        manifest = parse_manifest((directory / "manifest.json").read_bytes())
        return all(
            (directory / entry.file).stat().st_size == entry.bytes
            for entry in (manifest.tokenizer, *manifest.shards)
        )
    except (OSError, FormatError):
        return False
