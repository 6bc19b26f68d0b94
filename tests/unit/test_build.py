"""build.py's command line, its refusals and its sums; and that what it installs is pinned."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import build
import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("demo", "test", "setup", "site", "clean")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "build.py", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_help_lists_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for name in COMMANDS:
        assert re.search(rf"^ +{name} ", done.stdout, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(name: str) -> None:
    assert run(name, "--help").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "required: COMMAND"),
        (("nonsense",), "invalid choice"),
        (("site",), "required: --out"),
        (("demo", "--port", "x"), "invalid int"),
        (("setup", "--faster"), "unknown arguments: --faster"),
    ],
)
def test_bad_command_lines_are_refused(arguments: tuple[str, ...], reason: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert reason in done.stderr


def test_an_old_python_is_refused_in_words() -> None:
    # The check stands before everything that an old Python can't run, and needs nothing but sys.
    text = (ROOT / "build.py").read_text("utf-8")
    before = text[: text.index("\nimport argparse")]
    pretend = before.replace("import sys\n", "import sys\nsys.version_info = (3, 10, 1)\n", 1)
    done = subprocess.run([sys.executable, "-c", pretend], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "build.py needs Python 3.11 or later; this is 3.10.\n")


def test_it_needs_the_standard_library_only_and_stays_small() -> None:
    text = (ROOT / "build.py").read_text("utf-8")
    imported = re.findall(r"^\s*(?:import|from) ([\w]+)", text, re.M)
    assert set(imported) <= sys.stdlib_module_names
    assert text.count("\n") < 250


@pytest.mark.parametrize(
    ("rows", "last", "code"),
    [
        ([("a", 3, 0, 0, 1.0), ("b", 4, 0, 0, 1.0)], "7 passed, 0 failed", 0),
        ([("a", 3, 1, 0, 1.0), ("b", 4, 0, 2, 1.0)], "7 passed, 1 failed, 2 skipped", 1),
        ([("a", 0, 0, 0, 1.0)], "0 passed, 0 failed", 1),
    ],
)
def test_the_last_line_is_the_sum(
    rows: list[build.Row], last: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.summary(rows) == code
    assert capsys.readouterr().out.endswith(f"\n{last}\n")


@pytest.mark.parametrize(
    ("body", "extra", "counts"),
    [
        ("def test_a(): pass\ndef test_b(): assert 0\n", [], (1, 1, 0)),
        (
            "import pytest\ndef test_a(): pass\n@pytest.mark.skip(reason='r')\ndef test_b(): pass\n",
            [],
            (1, 0, 1),
        ),
        ("import no_such_module\n", [], (0, 1, 0)),
        ("", [], (0, 1, 0)),  # a suite without tests is a failure
        ("def test_a(): pass\n", ["-k", "other"], (0, 0, 0)),  # unless one selected others
    ],
)
def test_suites_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, extra: list[str], counts: tuple[int, int, int]
) -> None:
    suite = tmp_path / "tests" / "some"
    suite.mkdir(parents=True)
    (suite / "test_it.py").write_text(body, "utf-8")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build, "REPORTS", tmp_path)
    monkeypatch.setattr(build, "PYTHON", Path(sys.executable))
    assert build.pytest("some", extra)[1:4] == counts


def pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+) \\$", (ROOT / lock).read_text("utf-8"), re.M))


def test_every_package_is_pinned_by_hash_and_no_host_is_named() -> None:
    for lock in (build.SITE_LOCK, build.TEST_LOCK):
        text = (ROOT / lock).read_text("utf-8")
        assert "://" not in text
        for block in re.split(r"\n(?=\S)", text.strip()):
            assert re.fullmatch(r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+", block)


def test_the_test_lock_holds_the_site_lock() -> None:
    assert pins(build.SITE_LOCK).items() <= pins(build.TEST_LOCK).items()


def test_the_locks_hold_what_pyproject_asks_for() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    for lock, names in ((build.SITE_LOCK, ["site"]), (build.TEST_LOCK, ["site", "dev"])):
        found = pins(lock)
        for wanted in (r for name in names for r in groups[name] if isinstance(r, str)):
            name, _, version = wanted.partition("==")
            assert name in found
            assert version in ("", found[name])


def test_npm_packages_are_pinned_and_no_host_is_named() -> None:
    text = (ROOT / "package-lock.json").read_text("utf-8")
    assert "resolved" not in text
    packages = json.loads(text)["packages"]
    names = [name for name in packages if name]
    assert len(names) == text.count('"integrity": "sha512-') > 2
    wanted = json.loads((ROOT / "package.json").read_text("utf-8"))["devDependencies"]
    assert {f"node_modules/{name}": version for name, version in wanted.items()}.items() <= {
        name: packages[name]["version"] for name in names
    }.items()
