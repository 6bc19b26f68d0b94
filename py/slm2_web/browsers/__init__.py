"""Real browsers behind one small interface, for the tests, the benches and `slm2-web parity`.

    from slm2_web.browsers import open_browser, parse_browsers

    for spec in parse_browsers("chromium,firefox,webkit"):
        with open_browser(spec) as browser:                 # a fresh profile, gone at the end
            page = browser.open("http://127.0.0.1:8000/")   # a new tab, loaded
            page.wait("document.documentElement.dataset.state === 'ready'", limit_s=60)
            print(browser.title, browser.version, page.evaluate("navigator.hardwareConcurrency"))
            page.evaluate("fetch(arg.url).then((r) => r.json())", {"url": "site.json"})   # awaited
            page.screenshot(Path("page.png"))
            print(page.complaints())                        # console warnings and errors, exceptions

A spec is a name, or `name@URL` for a browser elsewhere: `ws://` and `wss://` a Playwright server, `http://`
and `https://` a WebDriver endpoint (a Selenium Grid, or a driver's own port).

| name | driven by |
|---|---|
| `chromium` | Playwright: its own Chromium, else the system's |
| `firefox` | Playwright: its own Firefox, else the system's over WebDriver BiDi |
| `webkit` | Playwright's own WebKit, else WebKitGTK's MiniBrowser by Selenium, on Xvfb if need be |
| `webkit-unshared` | the same without `SharedArrayBuffer`, as WebKitGTK is shipped |

Every wait has a limit, in seconds; beyond it `BrowserError` `browser.late` is raised, and a page that no
longer answers is left alone: close the browser. Pages of one browser share its profile: caches, storage,
service workers. A browser and its pages are used by one thread; another browser may be used by another.

    spec.py           names and URLs
    base.py           the interface
    opening.py        spec -> driver
    find.py           where the browsers of this machine are
    install.py        installs those that are missing
    playwright_driver.py, webdriver.py, display.py      the drivers
"""

from __future__ import annotations

from slm2_web.browsers.base import Browser, Message, Page
from slm2_web.browsers.opening import open_browser
from slm2_web.browsers.spec import NAMES, BrowserSpec, parse_browsers

__all__ = ["NAMES", "Browser", "BrowserSpec", "Message", "Page", "open_browser", "parse_browsers"]
