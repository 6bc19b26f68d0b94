"""worker/wasm/*.c -> *.wasm and *.shared.wasm, byte for byte the same wherever they are built.

    python -m slm2_web.compile.wasm            build them all
    python -m slm2_web.compile.wasm --check    build elsewhere and compare with what is there

The compiler is PyPI `ziglang` (Clang and a WebAssembly linker) in one pinned version; nothing of the host
takes part. The results are kept in the repository: building a site and running a kernel need no compiler.

Each source is linked twice, because a module declares whether the memory that it imports is shared:
`x.wasm` for an ordinary memory, `x.shared.wasm` for one that several workers read. The code is the same.

A kernel has no memory of its own, which is what lets any number of instances work on one memory. The linker
gives it a stack of no bytes, so that the first use of one traps, unless who makes the instance sets the
exported `__stack_pointer` to room of its own; and the tests see that no module has a data segment.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[3] / "worker" / "wasm"
ZIG_VERSION = "0.17.1"

# WebAssembly features that every browser with WebGPU has, and no others.
_FEATURES = ("bulk_memory", "mutable_globals", "nontrapping_fptoint", "sign_ext", "simd128")
_FLAGS = (
    "-target",
    "wasm32-freestanding",
    "-std=c23",
    "-O3",
    "-ffreestanding",
    "-ffp-contract=off",
    "-fno-stack-protector",
    "-fno-unwind-tables",
    "-fno-sanitize=undefined",
    "-nostdlib",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wl,--no-entry",
    "-Wl,--import-memory",
    "-Wl,--strip-all",
    "-Wl,-z,stack-size=0",
    "-Wl,--export=__stack_pointer",
)
# The largest memory that a shared one may be declared with: 2 GiB. Workers give one of this maximum.
_SHARED_FLAGS = ("-Wl,--shared-memory", "-Wl,--max-memory=2147483648")


class WasmBuildError(Exception):
    """The compiler is missing, of another version, or refuses a source."""


def build(out: Path, sources: Path = SOURCES) -> list[Path]:
    """The modules of all `sources`/*.c, written into `out`.

    Raises: WasmBuildError.
    """
    try:
        version = metadata.version("ziglang")
    except metadata.PackageNotFoundError:
        raise WasmBuildError(f"the package ziglang {ZIG_VERSION} is not installed") from None
    if version != ZIG_VERSION:
        raise WasmBuildError(f"found ziglang {version}; allowed: {ZIG_VERSION}")
    return [_compile(*job) for job in _jobs(out, sources)]


def differences(sources: Path = SOURCES) -> list[str]:
    """The names of the modules beside `sources` that a fresh build does not give, sorted.

    Raises: WasmBuildError.
    """
    with tempfile.TemporaryDirectory() as temporary:
        built = {path.name: path.read_bytes() for path in build(Path(temporary), sources)}
    kept = {path.name: path.read_bytes() for path in sources.glob("*.wasm")}
    return sorted(name for name in built.keys() | kept.keys() if built.get(name) != kept.get(name))


def _jobs(out: Path, sources: Path) -> Iterator[tuple[Path, Path, tuple[str, ...]]]:
    """(source, result, flags) of every module."""
    for source in sorted(sources.glob("*.c")):
        yield source, out / f"{source.stem}.wasm", (f"-mcpu=generic+{'+'.join(_FEATURES)}",)
        shared = (f"-mcpu=generic+{'+'.join((*_FEATURES, 'atomics'))}", *_SHARED_FLAGS)
        yield source, out / f"{source.stem}.shared.wasm", shared


def _compile(source: Path, result: Path, flags: tuple[str, ...]) -> Path:
    result.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        # In the source's folder and by its bare name: no path of this machine reaches the output.
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            *_FLAGS,
            *flags,
            source.name,
            "-o",
            str(result.resolve()),
        ]
        caches = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
        done = subprocess.run(
            command,
            cwd=source.parent,
            env={**os.environ, **caches},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise WasmBuildError(f"{source.name}:\n{done.stderr.strip()}")
    result.chmod(0o644)
    return result


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m slm2_web.compile.wasm", description="Build worker/wasm/*.wasm."
    )
    parser.add_argument("--check", action="store_true", help="only compare with a fresh build")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            for path in build(SOURCES):
                print(f"{path.name}: {path.stat().st_size} bytes")
            return 0
        wrong = differences()
    except WasmBuildError as error:
        print(error, file=sys.stderr)
        return 1
    if wrong:
        print(f"not what their sources give: {', '.join(wrong)}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
