"""Run in Pyodide by bytecode.py: imports what a visit imports, and compiles the sources of all that."""

import importlib.util
import marshal
import site
import sys
import zipfile
from pathlib import Path

# PEP 552: bytecode with its source's hash, which is not compared.
UNCHECKED = (1).to_bytes(4, "little")
LIB = next((path for path in sys.path if path.endswith(".zip")), "")


def run(out: str) -> None:
    """Writes a zip file to the path `out`: lib/PATH.py or site/PATH.py, each with that source's bytecode."""
    import numpy  # noqa: F401

    import slm2_web.bridge  # noqa: F401

    packages = site.getsitepackages()[0]
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    with zipfile.ZipFile(LIB) as library, zipfile.ZipFile(out, "w") as archive:
        for file in sorted(files):
            if not file.endswith(".py"):
                continue
            if file.startswith(f"{LIB}/"):
                name = file.removeprefix(f"{LIB}/")
                place, source = f"lib/{name}", library.read(name)
            elif file.startswith(f"{packages}/"):
                place, source = f"site/{file.removeprefix(f'{packages}/')}", Path(file).read_bytes()
            else:
                continue
            code = compile(source, file, "exec", dont_inherit=True)
            header = importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source)
            archive.writestr(zipfile.ZipInfo(place), header + marshal.dumps(code))
