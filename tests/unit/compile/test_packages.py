"""The wheel builds, far from any checkout, the site that the checkout builds; npm's package type-checks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from interrupts import heed_ctrl_c
from slm2_web.compile import place as places
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.browser_wheel import write_wheel
from slm2_web.compile.docs import install_docs
from slm2_web.compile.install import install_parity
from slm2_web.compile.packages import make_npm, make_wheel
from slm2_web.compile.place import NoSources, Place, find_place
from slm2_web.compile.site import SiteError, build_site

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that needs no checkout."""
    return make_wheel(find_place(), tmp_path_factory.mktemp("wheel"), print)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed it."""
    target = tmp_path_factory.mktemp("installed") / "packages"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps", "--no-index")
    subprocess.run([*pip, "-q", "--target", str(target), str(wheel)], check=True)
    return target


def command(
    installed: Path, folder: Path, *arguments: str, path: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Python, far from any checkout, in a folder that holds nothing of ours."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={
            "PATH": path,
            "PYTHONPATH": str(installed),
            "SLM2_HOME": str(folder / "home"),
            "SLM2_CACHE": str(Fetcher.from_environment(ROOT).cache),
            **env,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("has_node", [True, False])
def test_a_clean_folder_one_command_the_same_site(
    has_node: bool, installed: Path, packed_smollm2: Path, tmp_path: Path
) -> None:
    def slm2_web(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.environ["PATH"] if has_node else ""
        return command(installed, tmp_path, str(installed / "bin" / "slm2-web"), *arguments, path=path)

    done = slm2_web("site", "--out", "public")
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("public: built\n")
    assert ("without bytecode" in done.stderr) is not has_node
    fetcher = Fetcher.from_environment(ROOT)
    docs = install_docs(find_place(), print)
    build_site(
        ROOT,
        tmp_path / "ours",
        [packed_smollm2],
        fetcher,
        print,
        hidden=[install_parity(ROOT, print)],
        docs=docs,
        has_bytecode=has_node,
    )
    assert (tmp_path / "public/site.json").read_bytes() == (tmp_path / "ours/site.json").read_bytes()
    pages = [p.relative_to(tmp_path / "ours") for p in (tmp_path / "ours/docs").rglob("*") if p.is_file()]
    assert Path("docs/index.html") in pages
    assert Path("docs/files.json") in pages
    for page in pages:
        assert (tmp_path / "public" / page).read_bytes() == (tmp_path / "ours" / page).read_bytes(), page
    again = slm2_web("site", "--out", "public")
    assert (again.returncode, again.stderr) == (0, "public: up to date\n")
    # What it has packed answers on the command line.
    assert slm2_web("tokenize", "--model", "nobody").stderr.count("smollm2-135m") >= 1


def test_clean_leaves_what_is_not_ours(installed: Path, tmp_path: Path) -> None:
    for name in ("dist", "build"):
        (tmp_path / "home" / name).mkdir(parents=True)
        (tmp_path / "home" / name / "x").write_text("x", "utf-8")
    done = command(installed, tmp_path, "-m", "slm2_web.compile", "clean")
    assert (done.returncode, done.stderr) == (0, f"removed {tmp_path / 'home' / 'build'}\n")
    assert os.listdir(tmp_path / "home") == ["dist"]


def test_what_an_installer_adds_is_not_shipped(installed: Path, tmp_path: Path) -> None:
    """uv's and conda's installers write files of their own into the metadata, with the hour in them."""
    target = tmp_path / "packages"
    shutil.copytree(installed, target)
    names = "from slm2_web.compile.browser_wheel import installed_files; print(*installed_files(), sep='\\n')"
    before = command(target, tmp_path, "-c", names)
    (info,) = target.glob("*.dist-info")
    for name in ("uv_cache.json", "REQUESTED", "direct_url.json"):
        (info / name).write_text("{}", "utf-8")
        with (info / "RECORD").open("a", encoding="utf-8") as record:
            record.write(f"{info.name}/{name},,\n")
    (target / "_slm2_web.pth").write_text("", "utf-8")
    after = command(target, tmp_path, "-c", names)
    assert after.stdout == before.stdout
    found = set(before.stdout.splitlines())
    assert {"slm2_web/__init__.py", f"{info.name}/METADATA", f"{info.name}/licenses/LICENSE"} <= found
    assert {name.split("/")[0] for name in found} == {"slm2_web", info.name}
    assert not any("__pycache__" in name for name in found)
    # The metadata is a part of the wheel, so another one is another wheel.
    key = (
        "from pathlib import Path; from slm2_web.compile.site import _wheel_digest as key; print(key(Path()))"
    )
    one = command(target, tmp_path, "-c", key).stdout
    assert command(installed, tmp_path, "-c", key).stdout == one
    with (info / "METADATA").open("a", encoding="utf-8") as text:
        text.write("more\n")
    assert command(target, tmp_path, "-c", key).stdout != one
    (info / "RECORD").unlink()
    done = command(target, tmp_path, "-m", "slm2_web.compile", "site", "--out", "public", "--no-docs")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: slm2-web is installed without RECORD")


def test_a_wheel_without_metadata_is_none(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"a\.whl: found 0 files \*\.dist-info/METADATA; allowed: one"):
        write_wheel({"a/b.py": b""}, tmp_path / "a.whl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("npm", "--out", "mine"), "holds something that is not this package"),
        (("site", "--no-docs", "--out", "mine"), "holds something that is not a site"),
        (("visit", "old"), "found no runtime, stdlib, numpy, wheel, files; allowed: a site of version"),
        (("wheel", "--out", "mine/x.txt"), "File exists"),
    ],
)
def test_what_can_not_be_done_is_a_line(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "x.txt").write_text("x", "utf-8")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "site.json").write_text("{}", "utf-8")
    path = os.environ["PATH"]
    done = command(ROOT / "py", tmp_path, "-m", "slm2_web.compile", *arguments, path=path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert message in done.stderr
    assert (tmp_path / "mine" / "x.txt").read_text("utf-8") == "x"


def interrupted(out: Path, number: signal.Signals) -> tuple[int, str]:
    """The exit status of a build that is sent a signal as soon as it has begun, and what it then said."""
    command = [sys.executable, "-m", "slm2_web.compile", "site", "--no-docs", "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "py")}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heed_ctrl_c
    ) as process:
        assert process.stderr
        while not process.stderr.readline().startswith("building the site in"):
            assert process.poll() is None
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    return process.returncode, said.strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    for _ in range(10):
        status, said = interrupted(tmp_path / "new", number)
        if status:
            break
        # With all parts at hand a build takes a quarter of a second, and may be over before the signal comes.
        shutil.rmtree(tmp_path / "new")
    assert (status, said) == (130, "")
    assert os.listdir(tmp_path) == []


def test_without_typescript_npm_says_what_is_missing(tmp_path: Path) -> None:
    done = command(ROOT / "py", tmp_path, "-m", "slm2_web.compile", "npm", "--out", "new")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: TypeScript is not there; allowed: ")
    assert os.listdir(tmp_path) == []


def test_the_wheel_is_the_same_again(wheel: Path, tmp_path: Path) -> None:
    (tmp_path / wheel.name).write_bytes(b"an old one")
    assert make_wheel(find_place(), tmp_path, print).read_bytes() == wheel.read_bytes()
    assert os.listdir(tmp_path) == [wheel.name]


def test_what_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (record,) = (name for name in names if name.endswith(".dist-info/RECORD"))
        lines = archive.read(record).decode().splitlines()
    assert {line.split(",")[0] for line in lines} == names
    tree = {name.removeprefix("slm2_web/tree/") for name in names if name.startswith("slm2_web/tree/")}
    assert {"web/client.js", "worker/worker.js", "assets.toml", "LICENSE", "docs/index.html"} <= tree
    assert not any("node_modules" in name or "__pycache__" in name for name in names)
    assert not any(name.endswith((".c", ".d.ts", ".md")) for name in tree)


def test_a_wheel_is_made_in_a_checkout(tmp_path: Path) -> None:
    elsewhere = Place(tmp_path, tmp_path)
    with pytest.raises(NoSources, match="is no checkout"):
        make_wheel(elsewhere, tmp_path / "out", print)
    with pytest.raises(NoSources, match="is no checkout"):
        make_npm(elsewhere, tmp_path / "out")


def test_where_things_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_place() == Place(ROOT, ROOT)
    assert find_place().default_out == ROOT / "dist"
    monkeypatch.setattr(places, "PACKAGE", tmp_path / "a" / "b" / "slm2_web")
    with pytest.raises(NoSources, match="without the site's sources; allowed: a checkout"):
        find_place()
    (tmp_path / "a/b/slm2_web/tree").mkdir(parents=True)
    monkeypatch.setenv("SLM2_HOME", str(tmp_path / "home"))
    assert find_place() == Place(tmp_path / "a/b/slm2_web/tree", tmp_path / "home")
    assert find_place().default_out == Path("site")
    monkeypatch.delenv("SLM2_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert find_place().work == tmp_path / "cache" / "slm2-web"
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for relative in ("cache", "."):  # no path that counts
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert find_place().work == tmp_path / "user" / ".cache" / "slm2-web"


# --- npm -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """npm's folder."""
    return make_npm(find_place(), tmp_path_factory.mktemp("npm") / "package")


def test_every_export_is_there_with_its_types(package: Path) -> None:
    exports = json.loads((package / "package.json").read_text("utf-8"))["exports"]
    named = {name: target for name, target in exports.items() if isinstance(target, dict)}
    assert exports.keys() - named.keys() == {"./package.json"}
    assert {".", "./client.js", "./openai.js"} <= set(named)
    for target in named.values():
        assert (package / target["default"]).is_file()
        assert (package / target["types"]).is_file()
    assert {"./slm2-chat.js", "./prompt-api.js", "./markdown-view.js"} <= set(named)
    assert not (package / "types" / "vendor").exists()


def test_nothing_that_a_module_imports_is_missing(package: Path) -> None:
    modules = [*(package / "web").rglob("*.js"), *(package / "worker").rglob("*.js")]
    assert len(modules) > 20
    for module in modules:
        code = re.sub(r"^\s*(//|/?\*).*$", "", module.read_text("utf-8"), flags=re.M)
        for address in re.findall(r"""(?:from|import)\s*\(?["'](\.[^"']+)["']""", code):
            assert (module.parent / address).is_file(), f"{module}: {address}"
    text = (package / "vendor" / "LICENSES.txt").read_text("utf-8")
    assert re.findall(r"^(markdown-it|dompurify)-[\d.]+\.tgz: LICENSE$", text, re.M) == [
        "markdown-it",
        "dompurify",
    ]
    assert "Vitaly Puzrin" in text


def test_npm_packs_all_of_it(package: Path) -> None:
    npm = shutil.which("npm")
    assert npm, "npm is needed for this test"
    command = [npm, "pack", "--dry-run", "--json", "--offline"]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (packed,) = json.loads(done.stdout)
    files = {file["path"] for file in packed["files"]}
    assert files == {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}


USE = """
import { SLM2, Slm2Error, type Slm, type Chat, type Result } from "slm2-web";
import { openai } from "slm2-web/openai.js";
import { Slm2Chat, type Reply } from "slm2-web/slm2-chat.js";
import { LanguageModel } from "slm2-web/prompt-api.js";
import { MarkdownView } from "slm2-web/markdown-view.js";

const slm: Slm = await SLM2.load({ root: new URL("/slm2/", location.href) });
const chat: Chat = slm.chat([{ role: "user", content: "What is 2+2?" }], { temperature: 0 });
for await (const delta of chat) document.body.append(delta);
const result: Result = await chat.result;
const completion = await openai(slm).chat.completions.create({ messages: [{ role: "user", content: "x" }] });
console.log(result.reason, completion, Slm2Error);
const element = document.querySelector("slm2-chat");
if (!(element instanceof Slm2Chat)) throw new Error("no element");
const reply: Reply = await element.ask("x", { signal: AbortSignal.timeout(1000) });
const initialPrompts = [{ role: "system", content: "x" }];
const session: LanguageModel = await LanguageModel.create({ initialPrompts });
new MarkdownView(document.body).append(reply.text + (await session.prompt("x")));
console.log((await SLM2.storage.list()).map(({ name, stored_bytes }) => name + stored_bytes));
"""


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ("", None),
        ("slm.chat(7);", "not assignable"),
        ("const wrong: number = result.text;", "not assignable"),
        ("slm.nothing();", "does not exist"),
        ('import {} from "slm2-web/gone.js";', "Cannot find module"),
    ],
)
def test_a_clean_typescript_project(more: str, error: str | None, package: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").mkdir()
    shutil.copytree(package, tmp_path / "node_modules" / "slm2-web")
    (tmp_path / "use.ts").write_text(USE + more, "utf-8")
    options = {"strict": True, "noEmit": True, "target": "ES2024", "module": "ES2022", "types": []}
    options |= {"moduleResolution": "bundler", "lib": ["ES2024", "DOM", "DOM.Iterable", "DOM.AsyncIterable"]}
    config = {"compilerOptions": options, "files": ["use.ts"]}
    (tmp_path / "tsconfig.json").write_text(json.dumps(config), "utf-8")
    node = shutil.which("node")
    assert node, "Node.js is needed for this test"
    command = [node, str(ROOT / "node_modules/typescript/bin/tsc"), "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == (error is None), done.stdout
    assert (error or "") in done.stdout


def test_nothing_is_written_into_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be read-only."""
    made: list[Path] = []
    mkdtemp = tempfile.mkdtemp

    def noted(*arguments: Any, **options: Any) -> str:
        made.append(Path(mkdtemp(*arguments, **options)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    make_npm(find_place(), tmp_path / "package")
    assert made
    assert not any(path.is_relative_to(ROOT) for path in made)


def test_a_folder_of_others_is_not_replaced(package: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("x", "utf-8")
    with pytest.raises(SiteError, match="holds something that is not this package"):
        make_npm(find_place(), tmp_path)
    assert os.listdir(tmp_path) == ["mine.txt"]
    before = {p.name: p.stat().st_size for p in package.rglob("*")}
    assert make_npm(find_place(), package) == package
    assert {p.name: p.stat().st_size for p in package.rglob("*")} == before
