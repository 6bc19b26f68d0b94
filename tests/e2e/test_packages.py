"""A stranger's path: each package, a clean folder, a plain static server, a reply in a browser.

Nothing of the checkout is on the path of what runs here. The index that pip asks is a folder of wheels, those
of the packages that are installed beside us, so that no network is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from e2e.chatpage import TIMEOUT_MS, ChatPage
from e2e.conftest import ROOT, link
from e2e.plainhost import PlainHost
from slm2_web.compile.assets import Fetcher
from slm2_web.compile.browser_wheel import installed_files, write_wheel
from slm2_web.compile.packages import make_npm, make_wheel
from slm2_web.compile.place import find_place

QUESTION = "What is 2+2?"
# What the package needs and what those need.
NEEDED = ("numpy", "click", "jinja2", "markupsafe")


def wheel_of(name: str, folder: Path) -> Path:
    """A wheel of an installed package, under the name that its tags give it."""
    found = metadata.distribution(name)
    text = found.read_text("WHEEL") or ""
    tags = [line.split(": ")[1].split("-") for line in text.splitlines() if line.startswith("Tag: ")]
    parts = (".".join(dict.fromkeys(tag[i] for tag in tags)) for i in range(3))
    return write_wheel(
        installed_files(name), folder / f"{name}-{found.version}-{'-'.join(parts)}.whl", compress=False
    )


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    """What a command prints; it knows nothing of this environment."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), "PIP_CONFIG_FILE": os.devnull, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install` and one command give: a site."""
    folder = tmp_path_factory.mktemp("stranger")
    wheels = folder / "wheels"
    made = make_wheel(find_place(), wheels, print)
    for name in NEEDED:
        wheel_of(name, wheels)
    clean = folder / "clean"
    clean.mkdir()
    run(sys.executable, "-m", "venv", clean / "venv", cwd=clean)
    programs = clean / "venv" / "bin"
    pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q")
    run(*pip, "--no-index", "--find-links", wheels, made.name.split("-")[0].replace("_", "-"), cwd=clean)
    where = run(programs / "python", "-c", "import slm2_web, numpy; print(slm2_web.__file__)", cwd=clean)
    assert where.startswith(str(clean))
    cache = str(Fetcher.from_environment(ROOT).cache)
    told = run(programs / "slm2-web", "site", "--out", "public", cwd=clean, SLM2_CACHE=cache)
    assert told.endswith("public: built\n")
    served = folder / "elsewhere"
    (clean / "public").rename(served)
    return served


def test_the_wheel_in_a_clean_folder_gives_a_site_that_replies(
    public: Path, chromium_without_webgpu: Browser
) -> None:
    context = chromium_without_webgpu.new_context()
    context.add_init_script("localStorage.setItem('slm2-settings', '{\"temperature\": \"0\"}')")
    with PlainHost(public) as host:
        chat = ChatPage(context, host.url).open().wait("ready")
        text = chat.reply(QUESTION)["text"]
        assert "4" in text
        assert chat.says(text)
        page = context.new_page()
        page.goto(f"{host.url}docs/index.html")
        assert page.locator("main h1").inner_text().startswith("slm2-web")
    context.close()


PAGE = """<!doctype html>
<title>A stranger's page</title>
<link rel="icon" href="data:,">
{more}
<slm2-chat root="/slm2/" temperature="0"></slm2-chat>
"""
IMPORTS = """<script type="importmap">{"imports": {"slm2-web/": "/node_modules/slm2-web/web/"}}</script>
<script type="module">import "slm2-web/slm2-chat.js";</script>"""


def ask(page: Page) -> str:
    """The reply of the page's element."""
    page.wait_for_function("() => document.querySelector('slm2-chat')?.ask")
    text: str = page.evaluate(
        "(question) => document.querySelector('slm2-chat').ask(question).then(({ text }) => text)", QUESTION
    )
    return text


def test_npms_package_in_a_clean_project_gives_an_element_that_replies(
    public: Path, chromium_without_webgpu: Browser, tmp_path: Path
) -> None:
    npm = shutil.which("npm")
    assert npm, "npm is needed for this test"
    package = make_npm(find_place(), tmp_path / "package")
    (tarball,) = run(npm, "pack", "--silent", "--pack-destination", tmp_path, cwd=package).split()
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"name": "a-strangers-page", "private": true}\n', "utf-8")
    run(npm, "install", "--offline", "--no-audit", "--no-fund", tmp_path / tarball, cwd=project)
    assert (project / "node_modules/slm2-web/web/slm2-chat.js").is_file()
    shutil.copytree(public, project / "slm2", copy_function=link)
    own = '<script type="module" src="/node_modules/slm2-web/web/slm2-chat.js"></script>'
    for name, more in {"address": own, "imports": IMPORTS}.items():
        (project / f"{name}.html").write_text(PAGE.format(more=more), "utf-8")
    replies = set()
    problems: list[str] = []
    with PlainHost(project) as host:
        for name in ("address", "imports"):
            page = chromium_without_webgpu.new_page()
            page.set_default_timeout(TIMEOUT_MS)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.goto(f"{host.url}{name}.html")
            replies.add(ask(page))
            page.close()
    assert problems == []
    assert len(replies) == 1
    assert "4" in replies.pop()
