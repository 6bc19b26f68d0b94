"""The browser's wheels: a whole wheel less what can't run or isn't used there, so that a visit is small.

Ours lacks the command line and the compilers, so it needs no click. numpy lacks the packages that we don't
use, whose dynamic libraries Pyodide would load and compile all the same, and what only compilers and type
checkers read. The standard library lacks what has nothing to do in a worker.

Every file that stays is the whole archive's, byte for byte, and so is its hash in RECORD; or it is that
source's bytecode (bytecode.py).
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

# The command line, the compilers, the benches, the drivers of browsers, the parity runs, the site's own
# sources (place.py), and the wasm modules, which the page fetches itself; executors outside a browser; what
# only those use of the parity suite; the entry point.
NOT_IN_BROWSER = re.compile(
    r"slm2_web/(?:bench|browsers|cli|compile|parity_run|tree|wasm)(?:\.py$|/)"
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
# Debuggers, consoles, test frameworks; processes and sockets, which a worker has none of; code pages (but for
# cp437, which zip files need). What stays imports none of these but in functions that can't work there.
NOT_OF_STDLIB = re.compile(
    r"(?:_pyrepl|multiprocessing|unittest|wsgiref|xmlrpc)/"
    r"|(?:bdb|cmd|doctest|ftplib|imaplib|mailbox|optparse|pdb|pickletools|poplib|pydoc|smtplib|telnetlib)\.py$"
    r"|(?:webbrowser|_sysconfigdata[^/]*)\.py$"
    r"|encodings/(?:cp(?!437\.)\d+|iso8859_(?!1\.|15\.)\d+|mac_\w+|koi8_\w+|kz1048|ptcp154|tis_620|hp_roman8|palmos"
    r"|big5\w*|euc_\w+|gb\w+|hz|iso2022_\w+|johab|shift_\w+)\.py$"
)
_RECORD = re.compile(r"[^/]+\.dist-info/RECORD")
# What a wheel brings of its metadata. What else is there an installer has written, the hour in it at times.
_BROUGHT = r"[^/]+\.dist-info/(?:METADATA|WHEEL|entry_points\.txt|licenses/.+)"
# A zip's times, which nothing depends on.
_DATE = (2026, 1, 1, 0, 0, 0)


def trim(whole: Path, folder: Path, without: re.Pattern[str] = NOT_IN_BROWSER) -> Path:
    """The wheel less the files whose names match, in `folder`, under the same name.

    The same wheel gives the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
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


def hashed(file: Path) -> Path:
    """The file, renamed: its name tells a hash of its bytes, a wheel's as its build tag, which begins with 0.

    Browsers may keep what lies under the publisher's name for ever.
    """
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:8]
    if file.suffix != ".whl":
        return file.rename(file.with_name(f"{file.stem}-{digest}{file.suffix}"))
    name, version, *tags = file.name.split("-")
    return file.rename(file.with_name("-".join((name, version, f"0{digest}", *tags))))


def trim_stdlib(archive: Path) -> None:
    """Takes NOT_OF_STDLIB out of Pyodide's python_stdlib.zip, in place."""
    fresh = archive.with_name(f".{archive.name}")
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            if not NOT_OF_STDLIB.match(info.filename):
                target.writestr(info, source.read(info), compresslevel=9)
    os.replace(fresh, archive)


def replace_sources(archive: Path, compiled: Mapping[str, bytes]) -> None:
    """Puts bytecode in the place of those sources that there is some for, in place: PATH.pyc for PATH.py.

    A wheel's RECORD comes last then, as it does in every wheel that is built by the rules.
    """
    fresh = archive.with_name(f".{archive.name}")
    changed: dict[str, str] = {}
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as target:
        for info in sorted(source.infolist(), key=lambda info: _RECORD.fullmatch(info.filename) is not None):
            data = source.read(info)
            if info.filename in compiled:
                data, name = compiled[info.filename], f"{info.filename}c"
                changed[info.filename] = _record_line(name, data)
                info = _named(info, name)
            elif _RECORD.fullmatch(info.filename):
                lines = data.decode("utf-8").splitlines(keepends=True)
                data = "".join(changed.get(line.split(",")[0], line) for line in lines).encode()
            target.writestr(info, data, compresslevel=9)
    os.replace(fresh, archive)


def _record_line(name: str, data: bytes) -> str:
    """The line of RECORD that says what a file is."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def _named(info: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    """The same entry under another name."""
    entry = zipfile.ZipInfo(name, info.date_time)
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, info.external_attr
    return entry


def files_in(wheel: Path) -> dict[str, bytes]:
    """A wheel's files by name, without its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not _RECORD.fullmatch(name)}


def installed_files(package: str = "slm2-web") -> dict[str, bytes]:
    """The same of a wheel as it is installed here: what it brought, and nothing that an installer added.

    Raises: OSError when there is no such installation, it has no list of its files, or one is missing.
    """
    try:
        files = metadata.files(package)
    except metadata.PackageNotFoundError:
        raise OSError(f"{package} is not installed: its package lies here without its metadata") from None
    if not files:
        raise OSError(f"{package} is installed without RECORD, the list of its files; install it with pip")
    # A package's dynamic libraries may lie beside it.
    module = re.escape(package.replace("-", "_"))
    brought = re.compile(rf"{module}(?:\.libs)?/(?!(?:.*/)?__pycache__/).+|{_BROUGHT}")
    return {
        file.as_posix(): Path(str(file.locate())).read_bytes()
        for file in files
        if brought.fullmatch(file.as_posix())
    }


def write_wheel(
    files: Mapping[str, bytes], out: Path, without: re.Pattern[str] | None = None, *, compress: bool = True
) -> Path:
    """A wheel of these files, less those whose names match, with a RECORD.

    The same files give the same bytes.

    files: all but RECORD, by name; one `*.dist-info/METADATA` among them.

    Raises: OSError for files without that.
    """
    kept = {name: data for name, data in files.items() if without is None or not without.match(name)}
    found = [name.split("/")[0] for name in kept if name.endswith(".dist-info/METADATA")]
    if len(found) != 1:
        raise OSError(f"{out.name}: found {len(found)} files *.dist-info/METADATA; allowed: one")
    lines = [_record_line(name, kept[name]) for name in sorted(kept)]
    record = f"{found[0]}/RECORD"
    kept[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in [*sorted(kept.keys() - {record}), record]:
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, kept[name])
    return out
