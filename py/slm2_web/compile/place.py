"""Where things lie: what a site is built from, and where what is made on the way is kept.

In a checkout both are its root: `web/`, `worker/`, `assets.toml` are read, `build/` and `.cache/` written.
In an installed wheel the sources lie in the package, in `tree/` (packages.py puts them there, with the
documentation already built), and what is made is kept in the user's cache folder, or where SLM2_HOME says.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1]
# The wheel's folder of sources, beside the package's modules.
TREE: Final = "tree"
HOME_VARIABLE: Final = "SLM2_HOME"


class NoSources(OSError):
    """This installation holds no sources of the site."""


@dataclass(frozen=True, slots=True)
class Place:
    """sources: holds web/, worker/, assets.toml, LICENSE. work: build/ and .cache/ are made in it."""

    sources: Path
    work: Path

    @property
    def is_checkout(self) -> bool:
        """Are there sources of this package too, and not only of the site?"""
        return (self.sources / "pyproject.toml").is_file()

    @property
    def default_out(self) -> Path:
        """The site's folder when none is named: dist/ of a checkout, else `site` here."""
        return self.sources / "dist" if self.is_checkout else Path("site")


def find_place() -> Place:
    """The checkout that this package lies in, or the sources that its wheel brought.

    Raises: NoSources for an installation that has neither.
    """
    if (PACKAGE / TREE).is_dir():
        return Place(PACKAGE / TREE, _home())
    checkout = PACKAGE.parents[1]
    if (checkout / "assets.toml").is_file():
        return Place(checkout, checkout)
    raise NoSources(
        f"{PACKAGE} was installed without the site's sources; "
        "allowed: a checkout, or the wheel that `python -m slm2_web.compile wheel` makes"
    )


def _home() -> Path:
    """SLM2_HOME, else this program's part of the user's cache folder."""
    if os.environ.get(HOME_VARIABLE):
        return Path(os.environ[HOME_VARIABLE]).absolute()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        # The XDG Base Directory Specification: a path that is not absolute is to be ignored.
        named = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = named if named.is_absolute() else Path.home() / ".cache"
    return base / "slm2-web"
