"""The samples of README.md and docs/ run: shell, Python and JSON. tests/e2e has those for a page.

The shell's run for real on the parity suite's tiny model, which answers to the default model's name here.
Commands that take long (bench, parity, site, …) are parsed by their own parsers, in the same lines.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doc_samples import ROOT, Sample, read, run_samples, samples
from slm2_web.compile.install import install_parity
from slm2_web.manifest import parse_manifest
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.tokenizer import Tokenizer

# Stands in for slm2-web and python: what takes long is only parsed, by its own parser.
SHIM = """#!{python}
import sys
sys.path.insert(0, {package!r})
PARSED = ("bench", "parity", "vectors", "site", "serve", "demo")
name, arguments = {name!r}, sys.argv[1:]
if name == "python":
    if arguments[:1] == ["build.py"]:
        sys.path.insert(0, {root!r})
        import build
        build.parser().parse_args(arguments[1:])
        sys.exit(0)
    assert arguments[0] == "-m", arguments
    module, arguments = arguments[1], arguments[2:]
    if module == "slm2_web.parity":
        import slm2_web.parity.__main__ as suite
        suite.check = suite.write = lambda options: 0
        sys.exit(suite.main(arguments))
    assert module == "slm2_web.compile", module
    from slm2_web.compile.__main__ import main as group
    PARSED = tuple(group.commands)
else:
    from slm2_web.cli.app import cli as group
    from slm2_web.cli.app import main
if not arguments or arguments[0] not in PARSED:
    sys.exit(main())
command = group.commands[arguments[0]]
command.make_context(arguments[0], arguments[1:]).close()
"""

REQUEST = {
    "messages": [{"role": "user", "content": "Hi"}],
    "params": {"temperature": 0, "max_tokens": 4},
}


@pytest.fixture(scope="module")
def parity_model() -> Path:
    """The parity suite's packed model."""
    return install_parity(ROOT, print)


@pytest.fixture
def shell(tmp_path: Path, parity_model: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a script in a folder that has what samples name: a request, certificates, the commands."""
    models = tmp_path / "models"
    models.mkdir()
    for name in ("smollm2-135m", parity_model.name):
        shutil.copytree(parity_model, models / name)
    for folder in ("DIR", "A", "B", "public", ".venv/bin", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("A", "B"):
        (tmp_path / folder / "certificate.json").write_text("{}", "utf-8")
    (tmp_path / "request.json").write_text(json.dumps(REQUEST), "utf-8")
    for path, name in (
        (".venv/bin/slm2-web", "slm2-web"),
        ("bin/slm2-web", "slm2-web"),
        ("bin/python", "python"),
        ("bin/python3", "python"),
        (".venv/bin/python", "python"),
    ):
        program = tmp_path / path
        text = SHIM.format(python=sys.executable, package=str(ROOT / "py"), root=str(ROOT), name=name)
        program.write_text(text, "utf-8")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    environment = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SLM2_MODELS": str(models),
        "HOME": str(tmp_path),
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.mark.parametrize("sample", run_samples("sh"), ids=lambda sample: sample.place)
def test_shell(sample: Sample, shell: Callable[[str], subprocess.CompletedProcess[str]]) -> None:
    done = shell(sample.text)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("slm2-web bench --onyl forward --out x", "No such option"),
        ("slm2-web serve nowhere", "does not exist"),
        ("python -m slm2_web.parity --chekc", "required"),
        ("python3 build.py dmeo", "invalid choice"),
        ("python -m slm2_web.compile wheel", "Missing parameter: out"),
        ("slm2-web generate --model nobody < request.json", "input.model"),
    ],
)
def test_a_wrong_shell_sample_is_found(
    script: str, reason: str, shell: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    done = shell(script)
    assert done.returncode != 0
    assert reason in done.stderr


def names_for(file: str, parity_model: Path) -> dict[str, Any]:
    """What a page's fragments take for given: a model's parts, and the names that the page has introduced."""
    if file == "docs/python.md":
        return {}  # a whole program
    manifest = parse_manifest((parity_model / "manifest.json").read_bytes())
    data = (parity_model / manifest.tokenizer.file).read_bytes()
    tokenizer = Tokenizer.from_bytes(data)
    names: dict[str, Any] = {"manifest": manifest, "data": data, "tokenizer": tokenizer}
    for name in ("runs", "tokenizer", "incremental", "native"):
        names |= vars(importlib.import_module(f"slm2_web.tokenizer2.{name}"))
    for name in ("conversation", "machine"):
        names |= vars(importlib.import_module(f"slm2_web.template2.{name}"))
    for name in ("assemble", "request"):
        names |= vars(importlib.import_module(f"slm2_web.prompt2.{name}"))
    conversation = parse_conversation({"messages": [{"role": "user", "content": "What is 2+2?"}]})
    template = template_for(manifest.template, tokenizer)
    return names | {
        "tokenizer": tokenizer,
        "template": template,
        "conversation": conversation,
        "runs": template.render(conversation),
        "text": b"Hello",
        "max_seq_len": 512,
        "reserve_tokens": 128,
    }


@pytest.mark.parametrize("sample", run_samples("python"), ids=lambda sample: sample.place)
def test_python(sample: Sample, parity_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = compile("\n" * sample.line + sample.text, str(ROOT / sample.file), "exec")
    exec(code, names_for(sample.file, parity_model))


def test_json() -> None:
    for sample in samples("json"):
        json.loads(sample.text)


def test_every_kind_of_sample_is_there() -> None:
    """Else the tests above, which are made from them, would pass by being empty."""
    found = {sample.language for sample in run_samples()}
    assert {"sh", "python", "js", "html"} <= found
    assert len(run_samples()) > 20


# What no test runs, by its first line. A new one is a decision: add it here, with its reason on the page.
NOT_RUN = {
    ("docs/bench.md", "from slm2_web.bench.run import Settings, run_benches"),
    ("docs/building.md", "groups() { python3 -c 'import sys, tomllib"),
    ("docs/building.md", 'with open_browser("webkit") as browser:'),
    ("docs/building.md", "node_modules/.bin/typedoc"),
    ("docs/embedding.md", 'import { SLM2 } from "slm2-web";'),
    ("docs/quickstart.md", "python3 -m venv .venv"),
}


def test_what_is_not_run_is_known_and_says_why() -> None:
    found = {(sample.file, sample.first) for sample in samples() if sample.no_run}
    assert found == NOT_RUN


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```\nx\n```", "found the language ''"),
        ("```rust\nx\n```", "found the language 'rust'"),
        ("```sh slow\nx\n```", "found 'slow'; allowed: no-run: REASON"),
        ("```sh no-run: \nx\n```", "allowed: no-run: REASON"),
        ("```sh\nx\n```sh\ny\n```", "a fence in a fence"),
        ("a\n```sh\nx", "x.md:2: found a fence that is not closed"),
    ],
)
def test_fences_that_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"x\.md:") as caught:
        list(read(text, "x.md"))
    assert reason in str(caught.value)
