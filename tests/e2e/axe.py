"""axe-core, as the driver runs it in a page."""

from __future__ import annotations

import tarfile
from typing import Any, Literal

from playwright.sync_api import Page

from e2e.conftest import ROOT
from slm2_web.compile.assets import Fetcher

Scheme = Literal["light", "dark"]


def checker() -> str:
    """The checker's script."""
    path = Fetcher.from_environment(ROOT).fetch("axe-core")
    with tarfile.open(path, "r:gz") as archive:
        member = archive.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


def violations(page: Page, axe: str) -> list[str]:
    """What axe-core finds, each with the elements that it is about.

    The script is evaluated by the driver, which the page's policy doesn't bind.
    """
    page.evaluate(axe + "\n0")
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert found["passes"], "nothing was checked"
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']} {node['html'][:200]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
