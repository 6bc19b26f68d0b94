"""vendor/ of the site: other people's scripts that the page runs, each a member of an npm tarball, unchanged.

They are fetched by hash as every asset is, and lie under names without a version: site.json has their hashes.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import NamedTuple

from slm2_web.compile.assets import Fetcher
from slm2_web.errors import AssetError

FOLDER = "vendor"


class Script(NamedTuple):
    """A script of an asset: the member that it is, the name that it gets, and the member with its licence."""

    asset: str
    member: str
    file: str
    license: str


SCRIPTS = (
    Script(
        "markdown-it", "package/dist/browser/markdown-it.esm.min.mjs", "markdown-it.mjs", "package/LICENSE"
    ),
    Script("dompurify", "package/dist/purify.es.mjs", "dompurify.mjs", "package/LICENSE"),
)


def add_scripts(site: Path, fetcher: Fetcher) -> dict[str, str]:
    """Puts the scripts into the folder `site`; their licences' texts, by name for LICENSES.txt.

    Raises: AssetError `asset.unreachable` for a tarball that can't be had, `asset.hash` for one without
        the member.
    """
    texts = {}
    (site / FOLDER).mkdir(parents=True, exist_ok=True)
    for script in SCRIPTS:
        with tarfile.open(fetcher.fetch(script.asset), "r:gz") as archive:
            (site / FOLDER / script.file).write_bytes(_member(archive, script.asset, script.member))
            text = _member(archive, script.asset, script.license).decode("utf-8", "replace")
        file = fetcher.assets[script.asset].file
        texts[f"{file}: {script.license.rpartition('/')[2]}"] = text
    return texts


def _member(archive: tarfile.TarFile, asset: str, name: str) -> bytes:
    try:
        file = archive.extractfile(name)
    except KeyError:
        file = None
    if file is None:
        raise AssetError("asset.hash", f"{asset}: found no {name}; allowed: the tarball of assets.toml")
    return file.read()
