"""The matrix: every browser with every executor, and what is left out of it by whoever asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from slm2_web.browsers import BrowserSpec
from slm2_web.parity.certificate import Cell

# name: (what the page is told, whether its site is served with cross-origin isolation)
EXECUTORS: Final[dict[str, tuple[str, bool]]] = {
    "webgpu": ("webgpu", True),
    "wasm": ("wasm", True),
    "wasm-plain": ("wasm", False),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A cell to be run. name: of its browser in the certificate; two of one kind are numbered."""

    spec: BrowserSpec
    name: str
    executor: str

    @property
    def isolated(self) -> bool:
        """Whether its site is served isolated."""
        return EXECUTORS[self.executor][1]

    @property
    def title(self) -> str:
        """The cell's name for people."""
        return f"{self.name} {self.executor}"

    def query(self, size: str, stages: Sequence[str], version: str) -> str:
        """What parity.html is asked to run."""
        asked = {"size": size, "executor": EXECUTORS[self.executor][0], "stages": ",".join(stages)}
        return f"run&{urlencode({**asked, 'browser': self.name, 'browser_version': version})}"


def matrix(specs: Sequence[BrowserSpec], executors: Sequence[str]) -> list[Wanted]:
    """All cells, browser by browser."""
    names: list[str] = []
    for spec in specs:
        same = sum(name.partition("#")[0] == spec.name for name in names)
        names.append(f"{spec.name}#{same + 1}" if same else spec.name)
    return [
        Wanted(_plain(spec) if executor == "wasm-plain" else spec, name, executor)
        for spec, name in zip(specs, names, strict=True)
        for executor in executors
    ]


def _plain(spec: BrowserSpec) -> BrowserSpec:
    """The same browser without shared memory: WebKitGTK has it on every page, isolated or not, or on none."""
    return BrowserSpec("webkit-unshared") if spec == BrowserSpec("webkit") else spec


def absent(name: str, version: str, executor: str, why: str) -> Cell:
    """The cell of what is not run."""
    return Cell(
        browser=name,
        browser_version=version,
        user_agent="",
        executor=executor,
        isolated=False,
        threads=None,
        adapter=None,
        versions={},
        seconds=0.0,
        absence=why,
    )


def absence(executor: str, facts: Mapping[str, object]) -> str | None:
    """Why a browser has no such executor, by what its page told (`slm2Parity.facts`); None where it has."""
    match executor:
        case "webgpu" if not facts["webgpu"]:
            return str(facts["webgpu_absence"])
        case "wasm" if not facts["shared"] and facts["isolated"]:
            return "this browser has no SharedArrayBuffer, though the page is cross-origin isolated"
        case "wasm" if not facts["shared"]:
            return "the site is not served with cross-origin isolation, so there is no shared memory"
        case "wasm-plain" if facts["shared"] and facts["isolated"]:
            return "the site is served with cross-origin isolation, so there is shared memory"
        case "wasm-plain" if facts["shared"]:
            return "this browser has shared memory, though the page is not cross-origin isolated"
        case _:
            return None
