"""A model's markdown in a real browser under the site's policy: nothing of it runs, loads or escapes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from e2e.markdown_attacks import ATTACKS, random_markdown
from slm2_web.compile.serve import POLICY

N_RANDOM = 10_000
N_STREAMED = 1_500
SETUP = f"async () => {{ {(Path(__file__).parent / 'markdown_guest.js').read_text('utf-8')} }}"


@pytest.fixture(scope="module")
def page(chromium: Browser, url: str) -> Iterator[Page]:
    """A page of the site's origin, with its policy and no model."""
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.route(
        "**/guest.html",
        lambda route: route.fulfill(
            content_type="text/html",
            headers={"Content-Security-Policy": POLICY},
            body="<!doctype html><meta charset=utf-8><title>guest</title>",
        ),
    )
    page.goto(f"{url}guest.html")
    page.evaluate(SETUP)
    yield page
    context.close()


def html(page: Page, text: str) -> str:
    shown: str = page.evaluate(
        "(text) => { const { element, view } = make(); view.text = text; return element.innerHTML; }", text
    )
    return shown


def test_what_markdown_becomes(page: Page) -> None:
    link = 'target="_blank" rel="noopener noreferrer nofollow"'
    for text, shown in {
        "A **b** *c* ~~d~~ `e<f>`": "<p>A <strong>b</strong> <em>c</em> <s>d</s> <code>e&lt;f&gt;</code></p>",
        "one\ntwo": "<p>one<br>\ntwo</p>",
        "# Title": "<h3>Title</h3>",
        "###### Deep": "<h6>Deep</h6>",
        "3. a\n4. b": '<ol start="3">\n<li>a</li>\n<li>b</li>\n</ol>',
        "```js\nlet a;\n```": "<pre><code>let a;\n</code></pre>",
        "[a](https://b.example/)": f'<p><a href="https://b.example/" {link}>a</a></p>',
        "<mailto:a@b.example>": f'<p><a href="mailto:a@b.example" {link}>mailto:a@b.example</a></p>',
        "![a *b*](https://b.example/c.png)": f'<p><a href="https://b.example/c.png" {link}>a *b*</a></p>',
        "![](https://b.example/c)": f'<p><a href="https://b.example/c" {link}>https://b.example/c</a></p>',
        "[![a](https://b.example/)](https://d.example/)": f'<p><a href="https://d.example/" {link}>a</a></p>',
        "<b>bold</b>": "<p>&lt;b&gt;bold&lt;/b&gt;</p>",
        "[a](javascript:b)": "<p>[a](javascript:b)</p>",
        "[a](/b)": "<p>[a](/b)</p>",
        "[a]() ![b]()": "<p><a>a</a> b</p>",
        "[a]: https://b.example/": "<p>[a]: https://b.example/</p>",
        "": "",
    }.items():
        assert html(page, text) == shown, text
    table = html(page, "|a|b|\n|:-:|--|\n|1|2|")
    assert table.startswith('<div tabindex="0"><table>')
    assert '<th align="center">a</th>' in table


def test_attacks_and_ten_thousand_random_texts(page: Page) -> None:
    """Whole and as they stream, in the page and in a shadow tree."""
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    texts = [*ATTACKS, *random_markdown(seed=8, n=N_RANDOM)]
    # JSON can say a lone surrogate, the driver's own encoding can't.
    found: dict[str, Any] = page.evaluate(
        """async (json) => {
          const texts = JSON.parse(json);
          const host = document.createElement("div");
          document.body.append(host);
          const root = host.attachShadow({ mode: "open" });
          const bad = [];
          for (const [i, text] of texts.entries()) {
            const { element, view } = make(i % 2 ? root : document.body);
            view.text = text;
            const found = wrong(element);
            if (found.length > 0) bad.push([text, found]);
            if (i % 100 === 0) await new Promise((resolve) => setTimeout(resolve));
            if (i >= 200) element.remove();
          }
          // Links are followed, too, as far as they would run something here.
          const others = document.querySelectorAll("a[href]:not([href^=http]):not([href^=mailto])");
          for (const link of others) link.click();
          await new Promise((resolve) => setTimeout(resolve, 300));
          const left = document.querySelectorAll("script, iframe, img, style").length;
          return { bad, hits, violations, left };
        }""",
        json.dumps(texts),
    )
    assert found == {"bad": [], "hits": [], "violations": [], "left": 0}
    assert [each for each in requests if "evil" in each or "ok.example" in each] == []
    assert len(texts) > N_RANDOM


def test_streamed_is_as_whole(page: Page) -> None:
    """Whatever the pieces, at the end and at each rendering before: the same tree, and safe."""
    texts = random_markdown(seed=9, n=N_STREAMED)
    bad = page.evaluate(
        """async (json) => {
          const bad = [];
          let seed = 1;
          const draw = (n) => (seed = (seed * 48271) % 2147483647) % n;
          for (const text of JSON.parse(json)) {
            const streamed = make(), whole = make();
            for (let at = 0; at < text.length; ) {
              const end = Math.min(text.length, at + 1 + draw(24));
              streamed.view.append(text.slice(at, end));
              if (draw(3) === 0) streamed.view.flush();
              at = end;
            }
            streamed.view.flush();
            whole.view.text = text;
            const same = streamed.element.isEqualNode(whole.element);
            const found = wrong(streamed.element);
            const { innerHTML } = streamed.element;
            if (!same || found.length) bad.push([text, innerHTML, whole.element.innerHTML, found]);
            streamed.element.remove();
            whole.element.remove();
          }
          return { bad: bad.slice(0, 3), hits, violations };
        }""",
        json.dumps(texts),
    )
    assert bad == {"bad": [], "hits": [], "violations": []}


def test_what_is_there_stays(page: Page) -> None:
    """No flicker: a paragraph that grows is the same node, and what is selected in it stays so."""
    got = page.evaluate(
        """() => {
          const { element, view } = make();
          view.text = "first\\n\\n- a\\n\\nsecond **b";
          const [first, list, second] = element.children;
          const text = second.firstChild;
          getSelection().setBaseAndExtent(text, 0, text, 6);
          view.append("old** and more");
          view.flush();
          const same = [...element.children].every((child, i) => child === [first, list, second][i]);
          const selected = String(getSelection()).trim();
          return { same, text: second.firstChild === text, selected, html: second.innerHTML };
        }"""
    )
    assert got == {
        "same": True,
        "text": True,
        "selected": "second",
        "html": "second <strong>bold</strong> and more",
    }


def test_long_replies_cost_little(page: Page) -> None:
    """200,000 characters in 20,000 deltas, as one block and as many: in both cases bounded."""
    costs = page.evaluate(
        """async () => {
          const costs = {};
          const pieces = { words: "word **b** ", blocks: "a line\\n\\n", code: "x" };
          for (const [name, piece] of Object.entries(pieces)) {
            const { element, view } = make();
            if (name === "code") view.append("```\\n");
            const begun = performance.now();
            for (let i = 0; i < 20000; i++) view.append(piece.padEnd(10, piece));
            view.flush();
            costs[name] = [Math.round(performance.now() - begun), element.textContent.length > 100000];
            element.remove();
          }
          return costs;
        }"""
    )
    print("ms for 20,000 deltas:", costs)
    for name, (ms, is_there) in costs.items():
        assert is_there, name
        assert ms < 5_000, name


@pytest.mark.parametrize(
    "mark", ["[", "*", "_a ", "`", "> ", "- ", "![](", "<", "\\", "&", "|", "**a ", "~~", "(", "#"]
)
def test_repeated_marks_end_soon(page: Page, mark: str) -> None:
    ms = page.evaluate(
        """(mark) => {
          const { element, view } = make();
          const begun = performance.now();
          view.text = mark.repeat(5000);
          const bad = wrong(element);
          element.remove();
          return bad.length ? bad : performance.now() - begun;
        }""",
        mark,
    )
    assert ms < 3_000


def test_too_long_for_markdown_is_text(page: Page) -> None:
    got = page.evaluate(
        """() => {
          const { element, view } = make();
          view.text = "**a** ".repeat(50000);
          const plain = [element.children.length, element.textContent.length];
          view.text = "**a**";
          return [plain, element.innerHTML];
        }"""
    )
    assert got == [[0, 300_000], "<p><strong>a</strong></p>"]


def test_the_policy_allows_one_trusted_type_for_this_alone(page: Page) -> None:
    refused = page.evaluate(
        """async () => {
          const tries = {
            html: () => (document.body.innerHTML = "<b>x</b>"),
            policy: () => trustedTypes.createPolicy("other", { createHTML: (s) => s }),
            again: () => trustedTypes.createPolicy("slm2", { createHTML: (s) => s }),
            script: () => (document.createElement("script").text = "1"),
            worker: () => new Worker("./web/dom.js"),
            evaluate: () => document.body.setAttribute("onclick", "pwned()"),
          };
          const fails = (run) => { try { run(); return false; } catch { return true; } };
          const refused = Object.keys(tries).filter((name) => fails(tries[name]));
          const { scriptUrl } = await import("./web/trusted.js");
          const codeOf = (url) => { try { return scriptUrl(url); } catch (error) { return error.code; } };
          const others = ["https://evil.example/worker/worker.js", "./web/dom.js", "data:,1", "blob:x"];
          violations.length = 0;
          const own = String(scriptUrl("worker/worker.js")).startsWith(location.origin);
          return [refused, others.map(codeOf), own];
        }"""
    )
    assert refused == [
        ["html", "policy", "again", "script", "worker", "evaluate"],
        ["device.worker"] * 4,
        True,
    ]


def test_without_its_policy_text_stays_text(chromium: Browser, url: str) -> None:
    """A page whose own policy names other policies only: nothing is rendered, nothing is lost."""
    page = chromium.new_page()
    other = POLICY.replace("trusted-types slm2", "trusted-types mine")
    page.route(
        "**/guest.html",
        lambda route: route.fulfill(
            content_type="text/html", headers={"Content-Security-Policy": other}, body="<!doctype html>"
        ),
    )
    page.goto(f"{url}guest.html")
    page.evaluate(SETUP)
    assert html(page, "**a** <b>") == "**a** &lt;b&gt;"
    page.close()
