"""What a figure was measured on: the machine and the versions of what ran."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Processor, memory, system and load, as far as this system tells; nothing that names the machine."""
    facts: dict[str, Any] = {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if hasattr(os, "getloadavg"):
        facts["load_before"] = round(os.getloadavg()[0], 2)
    return facts


def package_version(name: str) -> str | None:
    """The installed version of a PyPI package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python_version() -> str:
    """This Python."""
    return f"{platform.python_implementation()} {platform.python_version()}"


def _processor() -> str:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30), 1)
    except (AttributeError, ValueError, OSError):
        return 0.0
