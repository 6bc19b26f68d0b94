"""A compiled model, found by its name: all of it that can be had without its weights."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Final

from slm2_web import __version__
from slm2_web.compile.place import NoSources, find_place
from slm2_web.errors import FormatError, InputError
from slm2_web.manifest import MAX_MANIFEST_BYTES, Manifest, parse_manifest
from slm2_web.packed import MANIFEST_FILE, check_file
from slm2_web.strictjson import show
from slm2_web.template2.compiled import CompiledTemplate
from slm2_web.template2.machine import Template, template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer
from slm2_web.transcript import Artifacts

_MODELS_VARIABLE: Final = "SLM2_MODELS"


class Model:
    """A packed directory. Raises: InputError `input.model`; FormatError."""

    def __init__(self, name: str) -> None:
        self.directory = _find(name)
        path = self.directory / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                self._manifest_bytes = file.read(MAX_MANIFEST_BYTES + 1)
        except OSError as error:
            raise _bad_file(path, error) from None
        self.manifest: Manifest = parse_manifest(self._manifest_bytes)

    @property
    def artifacts(self) -> Artifacts:
        """The hashes of its files."""
        return Artifacts.of(self.manifest, self._manifest_bytes, __version__)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer. Raises: FormatError."""
        entry = self.manifest.tokenizer
        path = self.directory / entry.file
        try:
            with path.open("rb") as file:
                data = file.read(entry.bytes + 1)
        except OSError as error:
            raise _bad_file(path, error) from None
        check_file(entry, data)
        return Tokenizer.from_bytes(data)

    @cached_property
    def template(self) -> Template | CompiledTemplate:
        """Its template. Raises: FormatError."""
        return template_for(self.manifest.template, self.tokenizer)

    def check_weights(self) -> None:
        """Nothing, when it has its weights. Raises: InputError `input.model`, which names their file."""
        if not self.manifest.shards:
            source, name = self.manifest.source, self.manifest.name
            allowed = f"a model compiled with {source.file} ({source.bytes} bytes, sha256 {source.sha256})"
            raise InputError(
                "input.model",
                f"model: {show(name)} was compiled without its weights; allowed: {allowed}. "
                f"tokenize and detokenize need none.",
                {"found": name, "missing": source.file, "folder": str(self.directory)},
            )


def _find(name: str) -> Path:
    """The directory of a model: a path, or a name in the models folder."""
    if os.sep in name or name in (".", ".."):
        directory = Path(name)
        if (directory / MANIFEST_FILE).is_file():
            return directory
        raise _no_model(f"{directory} holds no {MANIFEST_FILE}", name, [], directory)
    folder = _folder()
    try:
        installed = sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_FILE}"))
    except OSError:
        installed = []
    if name in installed:
        return folder / name
    listed = ", ".join(installed) or "no model"
    raise _no_model(f"{show(name)} is not in {folder}, which holds {listed}", name, installed, folder)


def _folder() -> Path:
    """SLM2_MODELS, else build/models here, else that of the checkout that this file lies in, or of the place
    where an installed wheel keeps what it makes."""
    if os.environ.get(_MODELS_VARIABLE):
        return Path(os.environ[_MODELS_VARIABLE])
    here = Path("build") / "models"
    if here.is_dir():
        return here
    try:
        made = find_place().work / "build" / "models"
    except NoSources:
        return here
    return made if made.is_dir() else here


def _no_model(message: str, name: str, installed: list[str], folder: Path) -> InputError:
    detail = {"found": name, "allowed": installed, "folder": str(folder)}
    return InputError("input.model", f"model: {message}", detail)


def _bad_file(path: Path, error: OSError) -> FormatError:
    return FormatError("format.model_file", f"{path}: {error.strerror}", {"file": path.name})
