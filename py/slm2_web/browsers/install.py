"""Installs the browsers that are missing: `python -m slm2_web.browsers.install`. Playwright's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from slm2_web.browsers.find import mini_browser, system_browser, webkit_driver
from slm2_web.browsers.playwright_driver import has_own_browser
from slm2_web.errors import BrowserError


def is_there(engine: str) -> bool:
    """Can this engine be driven here?"""
    if has_own_browser(engine):
        return True
    try:
        if engine != "webkit":
            return system_browser(engine).exists()
        return bool(
            webkit_driver() and mini_browser() and (os.environ.get("DISPLAY") or shutil.which("Xvfb"))
        )
    except BrowserError:
        return False


def main() -> int:
    """Installs what is missing; Playwright's exit status, or 0."""
    missing = [engine for engine in ("chromium", "firefox", "webkit") if not is_there(engine)]
    if not missing:
        return 0
    print(f"installing Playwright's {', '.join(missing)}", flush=True)
    return subprocess.run([sys.executable, "-m", "playwright", "install", *missing], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
