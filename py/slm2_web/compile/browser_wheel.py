"""The browser's wheels: a whole wheel less what can't run or isn't used there, so that a visit is small.

Ours lacks the command line and the compilers, so it needs no click. numpy lacks the packages that we don't
use, whose dynamic libraries Pyodide would load and compile all the same, and what only compilers and type
checkers read.

Every file that stays is the whole wheel's, byte for byte, and so is its line in RECORD.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

# The command line, compilers, benches, drivers of browsers and parity runs, and the wasm modules,
# which the page fetches itself; executors outside a browser; what only those use of the parity suite; the
# entry point.
NOT_IN_BROWSER = re.compile(
    r"slm2_web/(?:bench|browsers|cli|compile|parity_run|wasm)(?:\.py$|/)"
    r"|slm2_web/.*/native[^/]*\.py$"
    r"|slm2_web/parity/(?:__main__|baseline|certificate|difference)\.py$"
    r"|[^/]+\.dist-info/entry_points\.txt$"
)
# `import numpy` needs none of these; some are attributes of it that would be imported when first used.
# numpy.ma stays, as np.unique needs it.
NOT_OF_NUMPY = re.compile(
    r"numpy/(?:core|doc|f2py|fft|polynomial|random|testing)/"
    r"|numpy/linalg/lapack_lite\."
    r"|numpy/(?:.*/)?(?:tests|include)/"
    r"|numpy/.*\.(?:a|c|h|ini|md|pc|pxd|pyi|rst|typed)$"
    r"|[^/]+\.dist-info/entry_points\.txt$"
)
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")


def trim(whole: Path, folder: Path, without: re.Pattern[str] = NOT_IN_BROWSER) -> Path:
    """The wheel less the files whose names match, in `folder`, under the same name.

    The same wheel gives the same bytes.
    """
    out = folder / whole.name
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if without.match(info.filename):
                continue
            data = source.read(info)
            if _RECORD.fullmatch(info.filename):
                lines = data.decode("utf-8").splitlines(keepends=True)
                data = "".join(line for line in lines if not without.match(line.split(",")[0])).encode()
            target.writestr(info, data)
    return out


def trim_numpy(whole: Path, folder: Path) -> Path:
    """numpy's wheel less NOT_OF_NUMPY, in `folder`.

    Its name gets a build tag, `0` and a hash of its bytes: browsers may keep what lies under the publisher's
    name for ever.
    """
    trimmed = trim(whole, folder, NOT_OF_NUMPY)
    name, version, *tags = whole.name.split("-")
    build = f"0{hashlib.sha256(trimmed.read_bytes()).hexdigest()[:8]}"
    return trimmed.rename(folder / "-".join((name, version, build, *tags)))
