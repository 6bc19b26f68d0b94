"""Models on this machine: fetched and packed into build/models/NAME; again only when something changed.

A publisher's small files lie in published/, by the asset's name: kilobytes that make a model's tokenizer,
template and configuration certain to be had. Its weights are fetched; where they can't be, the model is
packed without them, which is said, and tried again by the next call.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slm2_web.compile.assets import Fetcher, check_asset
from slm2_web.compile.models import MODELS, ModelSpec
from slm2_web.compile.progress import Meter
from slm2_web.errors import AssetError, FormatError, InputError
from slm2_web.manifest import FileEntry, Manifest, parse_manifest

if TYPE_CHECKING:
    from slm2_web.compile.chat_template import Framing
    from slm2_web.compile.weights import Loss

PUBLISHED = Path(__file__).parent / "published"
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

    A Hugging Face model whose weights no source gives is packed without them, unless it is there with them.

    Raises: InputError `input.model` for a name that is not in the table; AssetError; FormatError.
    """
    spec = MODELS.get(name)
    if spec is None:
        raise InputError("input.model", f"no model is called {name!r}; there are: {', '.join(MODELS)}")
    out = models_folder(root) / name
    stamp = out.parent / f".{name}.stamp"
    key = hashlib.sha256(repr((spec, quantization, _code_digest())).encode()).hexdigest()
    there = _whole(out)
    if stamp.is_file() and stamp.read_text("utf-8") == key and there:
        return out
    files: dict[str, Path] = {}
    for file, asset in (spec.files or {fetcher.assets[spec.asset].file: spec.asset}).items():
        try:
            files[file] = _file(file, asset, fetcher, source)
        except AssetError as error:
            is_unreachable = error.code == "asset.unreachable" and source is None
            if not spec.files or asset != spec.asset or not is_unreachable or (there and there.shards):
                raise
            say(error.message)
    stamp.unlink(missing_ok=True)
    if spec.files and len(files) < len(spec.files):
        _pack_text(files, out, spec, fetcher, say)
        return out  # no stamp
    _pack(files, out, spec, quantization, say)
    stamp.write_text(key, "utf-8")
    return out


def install_parity(root: Path, say: Callable[[str], None]) -> Path:
    """The parity suite's own packed model, up to date: build/models/parity-qwen3."""
    from slm2_web.compile.parity_model import NAME, make_parity_model

    out = models_folder(root) / NAME
    stamp = out.parent / f".{NAME}.stamp"
    key = _code_digest()
    if not (stamp.is_file() and stamp.read_text("utf-8") == key and _whole(out)):
        say(f"packing {NAME} into {out}")
        stamp.unlink(missing_ok=True)
        make_parity_model(out)
        stamp.write_text(key, "utf-8")
    return out


def _file(file: str, asset: str, fetcher: Fetcher, source: Path | None) -> Path:
    """A file of the model, its bytes checked."""
    published = PUBLISHED / asset
    if source is None and not published.is_file():
        return fetcher.fetch(asset)
    path = published if source is None else source / file
    check_asset(fetcher.assets[asset], path)
    return path


def install_own(
    source: Path,
    root: Path,
    name: str,
    license: str,
    quantization: str,
    say: Callable[[str], None],
    *,
    raw: bool = False,
    date: datetime.date | None = None,
) -> Path:
    """A model of one's own, packed as build/models/NAME: a GGUF file or a directory of Hugging Face's.

    raw: without a template. date: what its template takes for today.

    Raises: InputError `input.model` for a name that is no plain one, or that is in the table; FormatError.
    """
    from slm2_web.compile.chat_template import Framing
    from slm2_web.compile.pack_hf import files_in
    from slm2_web.compile.weight_files import WEIGHTS

    if name in MODELS or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        allowed = "lower-case letters, digits, . _ - and no name of ours"
        raise InputError("input.model", f"found {name!r}; allowed: {allowed}")
    out = models_folder(root) / name
    framing = Framing(raw, date, say)
    if source.is_file():
        spec = ModelSpec(name, name, license, source.name, "", {})
        _pack({source.name: source}, out, spec, quantization, say, framing)
        return out
    files = files_in(source)
    spec = ModelSpec(name, name, license, WEIGHTS, "", {}, {file: file for file in files})
    _pack(files, out, spec, quantization, say, framing)
    return out


def _pack(
    files: Mapping[str, Path],
    out: Path,
    spec: ModelSpec,
    quantization: str,
    say: Callable[[str], None],
    framing: Framing | None = None,
) -> None:
    # Not before it is needed: it loads numpy.
    from slm2_web.compile.chat_template import FROM_FILE
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
            framing=framing or FROM_FILE,
        )
    else:
        (path,) = files.values()
        pack_gguf(path, out, spec, progress, framing or FROM_FILE)
    meter.close("packed")


def _pack_text(
    files: Mapping[str, Path], out: Path, spec: ModelSpec, fetcher: Fetcher, say: Callable[[str], None]
) -> None:
    from slm2_web.compile.pack_text import pack_text
    from slm2_web.compile.tokenizer_json import compile_tokenizer_json

    weights = fetcher.assets[spec.asset]
    say(f"packing {spec.name} into {out} without its weights: for tokenize and detokenize, not for generate")
    missing = FileEntry(weights.file, weights.bytes, weights.sha256)
    pack_text(files, out, spec, missing, compile_tokenizer_json)


def _code_digest() -> str:
    """A digest of this package. Most of it has no say in a model's bytes, but packing takes 2 s only."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".json")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _whole(directory: Path) -> Manifest | None:
    """Its manifest, if every file of it is there in its size; `site` and the loaders check the bytes."""
    try:
        manifest = parse_manifest((directory / "manifest.json").read_bytes())
        sizes = ((directory / entry.file).stat().st_size for entry in (manifest.tokenizer, *manifest.shards))
        entries = (entry.bytes for entry in (manifest.tokenizer, *manifest.shards))
        return manifest if list(sizes) == list(entries) else None
    except (OSError, FormatError):
        return None
