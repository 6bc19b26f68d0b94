"""A browser that isn't there: one error, which says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slm2_web.browsers import find, install, open_browser, playwright_driver
from slm2_web.browsers.display import Display
from slm2_web.errors import BrowserError


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commands, no browsers of Playwright's, no display."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(find, "MINIBROWSERS", (str(tmp_path / "*"),))
    playwright_driver.has_own_browser.cache_clear()


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", ["chromium", "firefox", "webkit", "webkit-unshared"])
def test_a_missing_browser_is_named(name: str) -> None:
    with pytest.raises(BrowserError) as caught:
        open_browser(name)
    engine = name.partition("-")[0]
    assert caught.value.code == "browser.missing"
    assert caught.value.detail["browser"] == engine
    assert f"playwright install {engine}" in caught.value.message
    assert find.DEBIAN[engine] in caught.value.message


@pytest.mark.usefixtures("bare_machine")
def test_missing_parts_of_webkit_are_named() -> None:
    with pytest.raises(BrowserError, match=r"^browser\.missing: webkit: no WebKitGTK MiniBrowser"):
        find.mini_browser()
    with pytest.raises(BrowserError, match=r"^browser\.missing: webkit: there is no DISPLAY"):
        Display.open()


@pytest.mark.usefixtures("bare_machine")
def test_what_is_missing_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 7)

    (tmp_path / "firefox").touch(mode=0o755)
    monkeypatch.setattr(subprocess, "run", run)
    assert install.main() == 7
    assert [command[1:] for command in ran] == [["-m", "playwright", "install", "chromium", "webkit"]]


@pytest.mark.parametrize(
    ("module", "spec"), [("playwright", "chromium"), ("selenium", "webkit@http://127.0.0.1:1")]
)
def test_a_missing_package_is_named(module: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BrowserError) as caught:
        open_browser(spec)
    assert caught.value.code == "browser.missing"
    assert caught.value.detail == {"package": module, "install": f"pip install {module}"}
