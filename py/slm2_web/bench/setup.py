"""What the benches of one packed model begin and end with: its files laid out, and who was measured where."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slm2_web.bench.layout import Places, lay_out_all
from slm2_web.bench.machine import machine_facts, python_version
from slm2_web.bench.peers import peer_versions
from slm2_web.bench.report import Report
from slm2_web.compile.assets import Fetcher
from slm2_web.manifest import Manifest
from slm2_web.packed import PackedModel

# A subject's key -> the packages that it is made of.
_PACKAGES: Final = {"wllama": ("wllama",), "transformers": ("transformers", "onnxruntime-web")}


@dataclass(slots=True)
class Setup:
    """A bench under way. versions: of what is measured; browsers are added as they are met."""

    manifest: Manifest
    tokenizer_bytes: bytes
    places: Places
    versions: dict[str, str]
    _machine: dict[str, Any] = field(default_factory=machine_facts)

    def report(self, bench: str, title: str, **rest: Any) -> Report:
        """Its report. `title`: before the model's; `rest`: what a Report has besides machine and versions."""
        for key, packages in _PACKAGES.items():
            if key not in self.places.missing:
                self.versions.update({name: peer_versions()[name] for name in packages})
        return Report(
            bench=bench,
            title=f"{title} {self.manifest.title}",
            machine={**self._machine, "load_after": machine_facts().get("load_before", 0.0)},
            versions=self.versions,
            **rest,
        )


@contextmanager
def set_up(
    model_folder: Path, root: Path, fetcher: Fetcher, *, has_peers: bool, say: Callable[[str], None]
) -> Iterator[Setup]:
    """The model's files laid out, until the bench ends. `root`: the checkout.

    Raises: SiteError, AssetError, FormatError.
    """
    model = PackedModel.open(model_folder)
    manifest, tokenizer_bytes = model.manifest, model.tokenizer_bytes
    del model  # the browser needs the memory
    versions = {"model": f"{manifest.title}, sha256 {manifest.source.sha256}", "Python": python_version()}
    build = root / "build"  # beside the site, so that files can be linked rather than copied
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        places = lay_out_all(Path(folder), root, model_folder, fetcher, has_peers=has_peers, say=say)
        yield Setup(manifest, tokenizer_bytes, places, versions)
