"""The browser's wheel: the whole wheel less what can't run there, so it is small and needs no click.

Every file that stays is the whole wheel's, byte for byte, and so is its line in RECORD.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

# The command line, the compilers, the benches, the drivers of browsers, the parity runs and the wasm modules,
# which the page fetches itself; executors outside a browser; what only they use of the parity suite; the
# command's entry point.
NOT_IN_BROWSER = re.compile(
    r"slm2_web/(?:bench|browsers|cli|compile|parity_run|wasm)(?:\.py$|/)"
    r"|slm2_web/.*/native[^/]*\.py$"
    r"|slm2_web/parity/(?:__main__|baseline|certificate|difference|kit)\.py$|slm2_web/parity/SPEC\.md$"
    r"|[^/]+\.dist-info/entry_points\.txt$"
)
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")


def trim(whole: Path, folder: Path) -> Path:
    """The browser's wheel in `folder`, under the same name; the same bytes for the same wheel."""
    out = folder / whole.name
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if NOT_IN_BROWSER.match(info.filename):
                continue
            data = source.read(info)
            if _RECORD.fullmatch(info.filename):
                lines = data.decode("utf-8").splitlines(keepends=True)
                data = "".join(
                    line for line in lines if not NOT_IN_BROWSER.match(line.split(",")[0])
                ).encode()
            target.writestr(info, data)
    return out
