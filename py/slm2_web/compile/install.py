"""Models on this machine: fetched and packed into build/models/NAME; again only when something changed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slm2_web.compile.assets import Fetcher, check_asset
from slm2_web.compile.models import MODELS, ModelSpec
from slm2_web.compile.progress import Meter
from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import parse_manifest

if TYPE_CHECKING:
    from slm2_web.compile.weights import Loss

# What a float matrix may become (pack_hf.QUANTIZATIONS); GGUF files are quantised already.
QUANTIZATION_NAMES = ("q4_1", "q4_0", "q8_0")


def models_folder(root: Path) -> Path:
    """Where packed models lie."""
    return root / "build" / "models"


def install_model(
    name: str,
    root: Path,
    fetcher: Fetcher,
    say: Callable[[str], None],
    *,
    source: Path | None = None,
    quantization: str = QUANTIZATION_NAMES[0],
) -> Path:
    """The packed model's directory, up to date. Its files are those in `source`, or fetched; the same bytes.

    Raises: InputError `input.model` for a name that is not in the table; AssetError; FormatError.
    """
    spec = MODELS.get(name)
    if spec is None:
        raise InputError("input.model", f"no model is called {name!r}; there are: {', '.join(MODELS)}")
    out = models_folder(root) / name
    stamp = out.parent / f".{name}.stamp"
    key = hashlib.sha256(repr((spec, quantization, _code_digest())).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text("utf-8") == key and _looks_whole(out):
        return out
    wanted = spec.files or {fetcher.assets[spec.asset].file: spec.asset}
    files: dict[str, Path] = {}
    for file, asset in wanted.items():
        if source is None:
            files[file] = fetcher.fetch(asset)
        else:
            files[file] = source / file
            check_asset(fetcher.assets[asset], files[file])
    stamp.unlink(missing_ok=True)
    _pack(files, out, spec, quantization, say)
    stamp.write_text(key, "utf-8")
    return out


def install_directory(
    directory: Path, root: Path, name: str, license: str, quantization: str, say: Callable[[str], None]
) -> Path:
    """A model of one's own, packed as build/models/NAME: `directory` is as Hugging Face lays it out.

    Raises: InputError `input.model` for a name that is no plain one, or that is in the table; FormatError.
    """
    from slm2_web.compile.pack_hf import WEIGHTS, files_in

    if name in MODELS or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        allowed = "lower-case letters, digits, . _ - and no name of ours"
        raise InputError("input.model", f"found {name!r}; allowed: {allowed}")
    out = models_folder(root) / name
    spec = ModelSpec(name, name, license, WEIGHTS, "", {}, {file: file for file in files_in(directory)})
    _pack(files_in(directory), out, spec, quantization, say)
    return out


def _pack(
    files: Mapping[str, Path], out: Path, spec: ModelSpec, quantization: str, say: Callable[[str], None]
) -> None:
    # Not before it is needed: it loads numpy.
    from slm2_web.compile.pack import pack_gguf
    from slm2_web.compile.pack_hf import QUANTIZATIONS, pack_hf

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "weights":
            meter(done, total)

    def report(loss: Loss) -> None:
        say(f"{loss.name}: {loss.type}, error {100 * loss.relative_error:.2f} % of the values (rms)")

    say(f"packing {spec.name} into {out}")
    meter = Meter(spec.name)
    if spec.files:
        from slm2_web.compile.tokenizer_json import compile_tokenizer_json

        pack_hf(
            files,
            out,
            spec,
            quantization=QUANTIZATIONS[quantization],
            compile_tokenizer=compile_tokenizer_json,
            progress=progress,
            report=report,
        )
    else:
        (path,) = files.values()
        pack_gguf(path, out, spec, progress)
    meter.close("packed")


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
