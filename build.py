#!/usr/bin/env python3
"""Set up, build, serve and test, from a bare Python >= 3.11. `python3 build.py --help` lists the commands.

Only the standard library is used here; the work is done by `slm2_web.compile` and by the tools that this
installs into .venv. Everything is pinned: Python packages by hash in requirements*.lock, npm's in
package-lock.json, other files in assets.toml. docs/building.md says more.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit("build.py needs Python 3.11 or later; this is {}.{}.".format(*sys.version_info))

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
COMPILE = (PYTHON, "-m", "slm2_web.compile")
REPORTS = ROOT / "build" / "reports"

DEFAULT_MODEL = "smollm2-135m"
SITE_LOCK = "requirements-site.lock"
TEST_LOCK = "requirements.lock"  # holds all of SITE_LOCK too, in the same versions
DEBIAN_BROWSERS = ("chromium", "firefox-esr", "webkit2gtk-driver", "xvfb", "dbus")
DEBIAN_PACKAGES = (*DEBIAN_BROWSERS, "libvulkan1", "mesa-vulkan-drivers", "fonts-dejavu-core")

TOOL_CACHES = (".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis")
CLEANED = ("dist", "build", ".venv", "node_modules", *TOOL_CACHES)

Command = tuple[str | Path, ...]
Row = tuple[str, int, int, int, float]  # name, passed, failed, skipped, seconds


def say(text: str) -> None:
    """A step, for people."""
    print(f"==> {text}", flush=True)


def run(*command: str | Path) -> None:
    """Run a command in the repository's root; its failure ends this program."""
    done = subprocess.run(command, cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(f"==> failed ({done.returncode}): {' '.join(map(str, command))}")


def is_debian_root() -> bool:
    """May system packages be installed by apt-get?"""
    release = Path("/etc/os-release")
    is_debian = release.is_file() and "ID=debian" in release.read_text("utf-8").splitlines()
    return is_debian and os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages: str) -> None:
    """Install the Debian packages that are missing."""
    query = ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages]
    listing = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    missing = [name for name in packages if f"{name} installed" not in listing]
    if missing:
        say(f"installing the system packages {', '.join(missing)}")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def make_venv(lock: str) -> None:
    """.venv with the packages of `lock` and the command `slm2-web`; nothing to do when they are there."""
    stamp = VENV / ".stamp"
    wanted = [stamp_line(name) for name in (lock, "pyproject.toml")]
    found = stamp.read_text("utf-8").splitlines() if stamp.is_file() and PYTHON.exists() else []
    # The larger set serves for the smaller.
    if wanted[1] in found and (wanted[0] in found or stamp_line(TEST_LOCK) in found):
        return
    if not PYTHON.exists():
        if importlib.util.find_spec("ensurepip") is None:
            if not is_debian_root():
                sys.exit("This Python can't make virtual environments; on Debian: apt install python3-venv")
            apt_install("python3-venv")
        say(f"making .venv with Python {'.'.join(map(str, sys.version_info[:3]))}")
        run(sys.executable, "-m", "venv", "--clear", VENV)
    pip = (PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check")
    say(f"installing the Python packages of {lock}")
    run(*pip, "--require-hashes", "-r", lock)
    run(*pip, "--no-deps", "--no-build-isolation", "--editable", ".")
    stamp.write_text("\n".join(wanted) + "\n", "utf-8")


def stamp_line(name: str) -> str:
    """The file's name and content, as a line."""
    return f"{name} {hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}"


def make_node_modules() -> None:
    """node_modules with TypeScript, which checks the page's sources."""
    stamp = ROOT / "node_modules" / ".stamp"
    wanted = stamp_line("package-lock.json")
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    npm = shutil.which("npm") or sys.exit("npm is not installed; it comes with Node.js (20 or later).")
    say("installing the npm packages of package-lock.json")
    run(npm, "ci", "--no-audit", "--no-fund")
    stamp.write_text(wanted, "utf-8")


def install_browsers() -> None:
    """The browsers that the tests drive: Debian's when we may install them, else Playwright's."""
    if is_debian_root():
        apt_install(*DEBIAN_PACKAGES)
    else:
        run(PYTHON, "-m", "slm2_web.browsers.install")


def setup(options: argparse.Namespace) -> None:
    """Set up .venv and compile the model."""
    make_venv(SITE_LOCK)
    run(*COMPILE, "model", options.model, *options.more)
    say(f"ready: {BIN / 'slm2-web'} --help")


def site(options: argparse.Namespace) -> None:
    """Build the static site into --out."""
    make_venv(SITE_LOCK)
    run(*COMPILE, "site", "--out", options.out, "--model", options.model, *options.more)


def demo(options: argparse.Namespace) -> None:
    """Build the site, serve it, print its URL."""
    site(options)
    port = () if options.port is None else ("--port", str(options.port))
    if os.name == "nt":
        run(*COMPILE, "serve", options.out, *port)
    # In place of this process: Ctrl-C and signals reach the server itself.
    os.execv(PYTHON, [str(part) for part in (*COMPILE, "serve", options.out, *port)])


def clean(options: argparse.Namespace) -> None:
    """Remove what build.py made; with --all the fetched files too."""
    for name in (*CLEANED, *((".cache",) if options.all else ())):
        path = ROOT / name
        if path.is_dir() and not path.is_symlink():
            say(f"removing {name}")
            shutil.rmtree(path)


def test(options: argparse.Namespace) -> None:
    """Run every check and test, all of them even when one fails; print a summary."""
    make_venv(TEST_LOCK)
    make_node_modules()
    install_browsers()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir(parents=True)
    tsc = (shutil.which("node") or "node", ROOT / "node_modules" / "typescript" / "bin" / "tsc")
    checks: dict[str, Command] = {
        "format": (BIN / "ruff", "format", "--check", "."),
        "lint": (BIN / "ruff", "check", "."),
        "types, Python": (BIN / "mypy",),
        "types, page": (*tsc, "-p", "."),
        "types, worker": (*tsc, "-p", "worker"),
    }
    if options.pytest:  # they select tests; the checks are of everything
        checks = {}
    checks["site"] = (*COMPILE, "site")
    rows = [check(name, command) for name, command in checks.items()]
    rows += [pytest(suite, options.pytest) for suite in ("unit", "e2e")]
    sys.exit(summary(rows))


def check(name: str, command: Command) -> Row:
    """One check that passes or fails as a whole."""
    code, seconds = timed(name, command)
    return name, int(code == 0), int(code != 0), 0, seconds


def pytest(suite: str, extra: list[str]) -> Row:
    """One folder of tests, counted from pytest's own report."""
    report = REPORTS / f"{suite}.xml"
    name = f"{suite} tests"
    code, seconds = timed(name, (PYTHON, "-m", "pytest", f"tests/{suite}", f"--junitxml={report}", *extra))
    suites = list(ElementTree.parse(report).iter("testsuite")) if report.exists() else []
    keys = ("tests", "failures", "errors", "skipped")
    tests, failures, errors, skipped = (sum(int(s.get(key, "0")) for s in suites) for key in keys)
    failed = failures + errors
    # A selection may well leave a suite without tests (exit status 5); any other odd ending is a failure.
    failed += int(code != 0 and not failed and not (code == 5 and extra))
    return name, max(tests - failed - skipped, 0), failed, skipped, seconds


def timed(name: str, command: Command) -> tuple[int, float]:
    """(exit status, seconds) of a command that reads nothing and prints as it likes."""
    say(name)
    start = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
    return code, time.monotonic() - start


def summary(rows: list[Row]) -> int:
    """Print the table; 1 when something failed or nothing ran."""
    print("\n" + f"{'':16}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}")
    for row in rows:
        print("{:16}{:8}{:8}{:9}{:9.1f}".format(*row))
    passed, failed, skipped = (sum(column) for column in list(zip(*rows, strict=True))[1:4])
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return int(failed > 0 or passed == 0)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="build.py", description="Set up, build, serve and test slm2-web.")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    subs = {}
    for function in (demo, test, setup, site, clean):
        name, text = function.__name__, function.__doc__
        subs[name] = commands.add_parser(name, help=text, description=text)
        subs[name].set_defaults(function=function, out=ROOT / "dist")
    for name in ("demo", "setup", "site"):
        add: Any = subs[name].add_argument
        more = {"dest": "more", "action": "append", "default": []}  # passed on to slm2_web.compile
        add("--model", default=DEFAULT_MODEL, metavar="NAME", help="default: %(default)s")
        add("--from", type=lambda d: f"--from={os.path.abspath(d)}", metavar="DIR", **more)
        add("--quant", type="--quant={}".format, metavar="TYPE", **more)
    subs["demo"].add_argument("--port", type=int, metavar="N", help="default: 8000, or the next free one")
    subs["test"].epilog = "Any other argument is given to pytest, and only tests run: test -k tokenizer"
    subs["site"].add_argument("--out", type=Path, required=True, metavar="DIR", help="the site's folder")
    for flag in ("--isolate", "--no-docs"):
        subs["site"].add_argument(flag, dest="more", action="append_const", const=flag)
    subs["clean"].add_argument("--all", action="store_true", help="fetched files too")
    return top


if __name__ == "__main__":
    command_line = parser()
    parsed, others = command_line.parse_known_args()
    if others and parsed.function is not test:
        command_line.error(f"unknown arguments: {' '.join(others)}")
    parsed.pytest = others
    try:
        parsed.function(parsed)
    except KeyboardInterrupt:
        sys.exit(130)
