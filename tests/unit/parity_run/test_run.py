"""The matrix, driven: what is run, what is absent and why, what a browser that fails comes to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from certificates import BASE, HASHES, cell, certificate, stage
from slm2_web.browsers import Browser, BrowserSpec, Message, Page, parse_browsers
from slm2_web.errors import AssetError, BrowserError, FormatError, InputError
from slm2_web.parity import suite
from slm2_web.parity.certificate import Cell, Difference, as_json, parse
from slm2_web.parity_run.cells import absence, matrix
from slm2_web.parity_run.run import Options, run_parity, write_certificate

FACTS = {"webgpu": True, "shared": True, "isolated": True, "webgpu_absence": None}
MODEL = "tiny"


@dataclass
class Script:
    """What a scripted browser does. pages: URLs that were opened."""

    facts: dict[str, Any] = field(default_factory=lambda: dict(FACTS))
    ran: Cell = field(default_factory=lambda: cell("x", "wasm", stage("tokenizer"), stage("forward")))
    executor: str | None = None
    dies: str | None = None
    missing: bool = False
    stalls: bool = False
    fails: dict[str, str] | None = None
    answer: Any = None
    pages: list[str] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    open: int = 0


class ScriptedPage(Page):
    """A page that plays parity.html."""

    def __init__(self, script: Script, url: str) -> None:
        self.script = script
        self.steps = 0
        self.goto(url)

    def goto(self, url: str, *, limit_s: float = 0) -> None:
        self.script.pages.append(url)
        self.url = url
        self.steps = 0

    def evaluate(self, expression: str, arg: Any = None, *, limit_s: float = 0) -> Any:
        script = self.script
        if "facts" in expression:
            return script.facts
        if "names" in expression:
            return ["tokenizer", "forward"]
        if "certificate" in expression:
            if script.answer is not None:
                return script.answer
            asked = parse_qs(self.url.partition("?")[2])["executor"][0]
            plain = asked == "wasm" and not script.facts["shared"]
            ran = replace(script.ran, executor=script.executor or ("wasm-plain" if plain else asked))
            return json.loads(json.dumps(as_json(certificate(ran))))
        assert "status" in expression
        return self.status()

    def status(self) -> dict[str, Any]:
        script = self.script
        if "?run" not in self.url:
            return {"state": "ready", "stage": "", "done": 0, "total": 0}
        if script.dies:
            raise BrowserError("browser.failed", script.dies)
        if script.fails:
            return {"state": "failed", "error": script.fails}
        if not script.stalls:
            self.steps += 1
        state = "done" if self.steps > 2 else "running"
        return {"state": state, "stage": "forward", "done": self.steps, "total": 3}

    def reload(self, *, limit_s: float = 0) -> None:
        raise NotImplementedError

    def _run(self, script: str, what: str, limit_s: float) -> str:
        raise NotImplementedError

    def click(self, selector: str, *, limit_s: float = 0) -> None:
        raise NotImplementedError

    def type(self, selector: str, text: str, *, limit_s: float = 0) -> None:
        raise NotImplementedError

    def screenshot(self, path: Path, *, limit_s: float = 0) -> None:
        raise NotImplementedError

    def messages(self) -> list[Message]:
        return [Message("error", "out of memory")]

    def close(self) -> None:
        pass


class ScriptedBrowser(Browser):
    """A browser that opens scripted pages."""

    version = "1.2"
    hears = "all"

    def __init__(self, spec: BrowserSpec, script: Script) -> None:
        self.spec = spec
        self.script = script
        self.is_open = True
        script.open += 1
        script.threads.append(threading.get_ident())

    def open(self, url: str, *, limit_s: float = 0) -> Page:
        return ScriptedPage(self.script, url)

    def close(self) -> None:
        self.script.open -= self.is_open
        self.is_open = False


Run = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a baseline of two stages, no case of `boundary`, and a built site."""
    monkeypatch.setattr("slm2_web.parity_run.drive.POLL_S", 0.001)
    (tmp_path / "web").mkdir()
    stages = {
        name: {
            "vectors": dict.fromkeys(suite.SIZES, base.vectors),
            "digests": dict.fromkeys(suite.SIZES, base.digest),
            "marks": "01234567" * base.vectors,
        }
        for name, base in BASE.items()
    }
    baseline = {"suite": suite.SUITE, "models": {MODEL: {"stages": stages}}}
    (tmp_path / "web" / "parity-baseline.json").write_text(json.dumps(baseline))
    (tmp_path / "web" / "parity-boundary.json").write_text(json.dumps({"model": "none", "cases": []}))
    (tmp_path / "web" / "parity-opinion.json").write_text(json.dumps({"models": {}}))
    entry = {"bytes": 1, "sha256": HASHES["c"]}
    files = dict.fromkeys((f"models/{MODEL}/manifest.json", "parity.html", "wheels/a/b.whl"), entry)
    site = {"format": "slm2-site", "version": HASHES["h"], "files": files}
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "site.json").write_text(json.dumps(site))
    return tmp_path


@pytest.fixture
def run(root: Path) -> Run:
    """Runs the matrix on scripted browsers, by name."""

    def make(browsers: str, scripts: dict[str, Script], **more: Any) -> Any:
        def opener(spec: BrowserSpec) -> Browser:
            script = scripts[str(spec)]
            if script.missing:
                raise BrowserError("browser.missing", f"{spec} is not installed")
            return ScriptedBrowser(spec, script)

        specs = parse_browsers(browsers)
        fields = {"executors": ("wasm",), "size": "quick", "site": root / "site", "cpython": None, **more}
        options = Options(root=root, specs=specs, opener=opener, **fields)
        told: list[tuple[str, str, int, int]] = []
        made = run_parity(options, lambda *each: told.append(each), lambda cell: None)
        assert all(script.open == 0 for script in scripts.values())
        return made, told

    return make


def test_every_browser_runs_with_every_executor(run: Run) -> None:
    scripts = {"chromium": Script(), "firefox": Script()}
    made, told = run("chromium,firefox", scripts, executors=("webgpu", "wasm"))
    names = [each.name for each in made.cells]
    assert names == ["chromium/webgpu", "chromium/wasm", "firefox/webgpu", "firefox/wasm"]
    assert made.verdict == "equal"
    queries = [url.partition("?")[2] for url in scripts["firefox"].pages if "?" in url]
    common = "browser=firefox&browser_version=1.2"
    assert queries == [
        f"run&size=quick&executor={executor}&stages=tokenizer%2Cforward&{common}"
        for executor in ("webgpu", "wasm")
    ]
    assert ("firefox wasm", "forward", 1, 3) in told


def test_the_site_is_served_without_isolation_for_wasm_plain(run: Run) -> None:
    script = Script(facts={**FACTS, "shared": False, "isolated": False})
    made, _ = run("chromium", {"chromium": script}, executors=("wasm", "wasm-plain"))
    assert [each.verdict for each in made.cells] == ["absent", "equal"]
    isolated, other = ({url.partition("parity.html")[0] for url in part} for part in split(script.pages))
    assert isolated.isdisjoint(other)


def split(pages: list[str]) -> tuple[list[str], list[str]]:
    """The pages of the cell that is absent, which is only asked what it has, and of the other."""
    return pages[:1], pages[1:]


def test_what_a_browser_lacks_is_absent_with_its_reason(run: Run) -> None:
    why = "this browser has no WebGPU (navigator.gpu is undefined)"
    facts = {**FACTS, "webgpu": False, "webgpu_absence": why}
    made, _ = run("webkit", {"webkit": Script(facts=facts)}, executors=("webgpu", "wasm"))
    first, second = made.cells
    assert (first.verdict, first.absence, second.verdict) == ("absent", why, "equal")
    assert made.verdict == "equal"


@pytest.mark.parametrize(
    ("executor", "facts", "words"),
    [
        ("wasm", {"shared": False, "isolated": True}, "no SharedArrayBuffer, though"),
        ("wasm", {"shared": False, "isolated": False}, "not served with cross-origin isolation"),
        ("wasm-plain", {"shared": True, "isolated": True}, "is served with cross-origin isolation"),
        ("wasm-plain", {"shared": True, "isolated": False}, "though the page is not cross-origin isolated"),
    ],
)
def test_absence_tells_why(executor: str, facts: dict[str, bool], words: str) -> None:
    assert words in (absence(executor, facts) or "")


def test_a_browser_that_was_left_out_is_never_started(run: Run) -> None:
    scripts = {"chromium": Script(), "webkit": Script(missing=True)}
    made, _ = run("chromium,webkit", scripts, without=("webkit",))
    assert made.cells[1].absence == "left out: --without webkit"
    assert made.verdict == "equal"
    assert scripts["webkit"].pages == []


def test_a_missing_browser_is_told_before_anything_is_run(run: Run) -> None:
    scripts = {"chromium": Script(), "webkit": Script(missing=True)}
    with pytest.raises(BrowserError) as caught:
        run("chromium,webkit", scripts)
    assert caught.value.code == "browser.missing"
    assert scripts["chromium"].pages == []
    assert scripts["chromium"].open == 0


def test_a_browser_that_dies_is_a_cell_that_failed_and_the_others_go_on(run: Run) -> None:
    scripts = {"chromium": Script(dies="the browser is gone"), "firefox": Script()}
    made, _ = run("chromium,firefox", scripts)
    first, second = made.cells
    assert first.verdict == "failed"
    assert first.failure is not None
    assert (first.failure.code, first.failure.message) == ("browser.failed", "the browser is gone")
    assert first.browser_version == "1.2"
    assert second.verdict == "equal"
    assert made.verdict == "failed"


def test_a_page_that_stalls_is_given_up_with_what_it_complained_of(run: Run) -> None:
    made, _ = run("firefox", {"firefox": Script(stalls=True)}, stall_s=0.02)
    failure = made.cells[0].failure
    assert failure.code == "browser.late"
    assert "nothing new for 0.02 s in forward; error: out of memory" in failure.message


def test_a_page_that_fails_is_quoted(run: Run) -> None:
    error = {"code": "asset.unreachable", "message": "no such file"}
    made, _ = run("firefox", {"firefox": Script(fails=error)})
    assert made.cells[0].failure.message == "firefox wasm: asset.unreachable: no such file"


def test_a_page_that_ran_on_something_else_has_failed(run: Run) -> None:
    made, _ = run("firefox", {"firefox": Script(executor="wasm")}, executors=("webgpu",))
    assert made.cells[0].executor == "webgpu"
    assert made.cells[0].failure.message == "firefox webgpu: the page ran on wasm"


@pytest.mark.parametrize("answer", [{}, [], "text", {"format": "slm2-parity-certificate", "version": 1}])
def test_an_answer_that_is_no_certificate_is_a_failure(run: Run, answer: Any) -> None:
    made, _ = run("firefox", {"firefox": Script(answer=answer)})
    assert made.cells[0].failure.code == "format.certificate"


def test_verdicts_are_the_checkouts_whatever_the_pages_baseline_says(run: Run, root: Path) -> None:
    found = stage("tokenizer", HASHES["e"], difference=Difference(1, "in", {"mark": "x"}, "out"))
    file = root / "web" / "parity-baseline.json"
    script = Script(ran=cell("x", "wasm", found, stage("forward")))
    made, _ = run("chromium", {"chromium": script})
    assert made.verdict == "differs"
    first = made.cells[0].stages[0]
    # CPython can't say what it would be: there is no such model here.
    assert first.difference.expected["mark"] == "01234567"
    file.write_text(file.read_text().replace(BASE["tokenizer"].digest, HASHES["e"]))
    made, _ = run("chromium", {"chromium": script})
    assert made.verdict == "equal"
    assert made.cells[0].stages[0].difference is None


def test_a_farm_runs_side_by_side_and_this_machine_does_not(run: Run) -> None:
    names = ["chromium", "firefox", "webkit@http://a.test:4444", "chromium@ws://b.test:1/"]
    scripts = {name: Script() for name in names}
    made, _ = run(",".join(names), scripts)
    assert [each.browser for each in made.cells] == ["chromium", "firefox", "webkit", "chromium#2"]
    local = {scripts[name].threads[-1] for name in names[:2]}
    assert len(local) == 1
    # What has its own URL has its own worker; a pool may give two short ones the same thread.
    assert all(len(script.pages) == 2 for script in scripts.values())


def test_the_files_hold_every_cell(run: Run, tmp_path: Path) -> None:
    made, _ = run("chromium,webkit", {"chromium": Script(), "webkit": Script()})
    out = tmp_path / "out"
    written = write_certificate(made, out)
    names = ["certificate.json", "certificate.html", "cells/chromium-wasm.json", "cells/webkit-wasm.json"]
    assert [path.relative_to(out).as_posix() for path in written] == names
    assert parse((out / "certificate.json").read_bytes()) == replace(made)
    one = json.loads((out / "cells" / "webkit-wasm.json").read_text())
    assert one["cell"]["browser"]["name"] == "webkit"
    assert [a.path for a in made.artifacts] == [f"models/{MODEL}/manifest.json", "wheels/a/b.whl"]


def test_bad_sites_and_stages_are_refused(run: Run, root: Path) -> None:
    with pytest.raises(InputError) as caught:
        run("chromium", {"chromium": Script()}, stages=("alchemy",))
    assert caught.value.detail["allowed"] == "tokenizer, forward, boundary"
    with pytest.raises(InputError, match="a site"):
        run("chromium", {"chromium": Script()}, site=root / "web")
    with pytest.raises(AssetError):
        run("chromium", {"chromium": Script()}, site="http://127.0.0.1:9")
    (root / "site" / "site.json").write_text('{"format": "slm2-site", "version": 1, "files": []}')
    with pytest.raises(InputError, match="another kind"):
        run("chromium", {"chromium": Script()})


def test_a_baseline_of_another_suite_is_refused(run: Run, root: Path) -> None:
    file = root / "web" / "parity-baseline.json"
    file.write_text(file.read_text().replace(f'"suite": {suite.SUITE}', '"suite": 999'))
    with pytest.raises(FormatError):
        run("chromium", {"chromium": Script()})


def test_webkit_has_a_way_of_its_own_to_be_without_shared_memory() -> None:
    plain, shared = matrix(parse_browsers("webkit"), ("wasm-plain", "wasm"))
    assert (plain.name, str(plain.spec), str(shared.spec)) == ("webkit", "webkit-unshared", "webkit")
    (farm,) = matrix(parse_browsers("webkit@http://a.test:1"), ("wasm-plain",))
    assert str(farm.spec) == "webkit@http://a.test:1"


def test_browsers_of_one_kind_are_numbered() -> None:
    specs = parse_browsers("chromium,chromium@ws://a.test/,chromium@ws://b.test/")
    assert [each.name for each in matrix(specs, ("wasm",))] == ["chromium", "chromium#2", "chromium#3"]
