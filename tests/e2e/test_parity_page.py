"""The parity page: the suite in the visitor's browser, its verdict, a planted difference, the certificate."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from e2e.conftest import Serve
from e2e.test_page import SHOTS, faint, overflow
from slm2_web.parity import certificate
from slm2_web.parity.certificate import Certificate

# Loads Python and a model twice, on a machine that may do other things.
RUN_MS = 420_000
ROOT = Path(__file__).resolve().parents[2]
Damage = Callable[[str, Callable[[bytes], bytes]], Path]


def open_page(context: BrowserContext, url: str, query: str = "") -> Page:
    """The page, ready, or running as its address says."""
    page = context.new_page()
    page.goto(f"{url}parity.html{query}")
    page.wait_for_selector("html:not([data-state=loading])", state="attached")
    return page


def wait_for_verdict(page: Page) -> None:
    expect(page.locator("#verdict")).to_be_visible(timeout=RUN_MS)


def downloaded(page: Page) -> Certificate:
    """The certificate that the page offers, read strictly."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download the certificate").click()
    assert waiting.value.suggested_filename == "parity-certificate.json"
    return certificate.parse(waiting.value.path().read_bytes())


@pytest.fixture(scope="module")
def done(context: BrowserContext, url: str) -> Page:
    """The page after its quick suite, which was started by the keyboard. Its status texts are collected."""
    page = open_page(context, url)
    page.evaluate(
        """() => {
          window.heard = [];
          const status = document.getElementById("status");
          new MutationObserver(() => heard.push(status.textContent)).observe(status, { childList: true });
        }"""
    )
    page.get_by_role("radio", name="Quick").focus()
    assert page.get_by_role("radio", name="Quick").is_checked()
    page.get_by_role("button", name="Run the suite").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Cancel")).to_be_focused()
    expect(page.get_by_role("radio", name="Quick")).to_be_disabled()
    wait_for_verdict(page)
    return page


def test_the_quick_suite_is_equal_in_this_browser(done: Page) -> None:
    stages = done.locator("#stages > li")
    names: list[str] = done.evaluate("slm2Parity.names()")
    assert stages.evaluate_all("items => items.map((i) => i.dataset.stage)") == names
    assert {"tokenizer", "forward", "chat", "boundary", "chat.qwen3", "regex.qwen3"} <= set(names)
    expect(done.get_by_role("heading", name="✓ The same bits.")).to_be_visible()
    states = stages.evaluate_all("items => items.map((i) => [i.dataset.stage, i.dataset.state])")
    assert states == [[name, "equal"] for name in names]
    assert stages.locator(".verdict").all_text_contents() == ["✓ equal"] * len(names)
    expect(done.get_by_role("button", name="Run the suite")).to_be_enabled()


def test_its_certificate_is_whole(done: Page, site: Path) -> None:
    found = downloaded(done)
    assert found.verdict == "equal"
    assert found.size == "quick"
    listed: dict[str, Any] = json.loads((site / "site.json").read_bytes())
    assert found.site == listed["version"]
    assert {a.path: a.sha256 for a in found.artifacts}.items() <= {
        path: entry["sha256"] for path, entry in listed["files"].items()
    }.items()
    assert {a.kind for a in found.artifacts} == set(certificate.KINDS)
    (cell,) = found.cells
    assert (cell.browser, cell.executor, cell.isolated) == ("chromium", "wasm", True)
    assert cell.threads == done.evaluate("navigator.hardwareConcurrency")
    assert set(cell.versions) == {"pyodide", "python", "numpy", "slm2_web"}
    assert [stage.name for stage in cell.stages] == done.evaluate("slm2Parity.names()")
    baseline = json.loads((ROOT / "web" / "parity-baseline.json").read_bytes())
    sums = baseline["models"]["smollm2-135m"]["stages"]["forward"]
    forward = next(stage for stage in cell.stages if stage.name == "forward")
    assert (forward.digest, forward.vectors) == (sums["digests"]["quick"], sums["vectors"]["quick"])


def test_who_listens_hears_of_stages_and_the_verdict_only(done: Page) -> None:
    heard: list[str] = done.evaluate("heard")
    names: list[str] = done.evaluate("slm2Parity.names()")
    assert heard[0] == "The suite is running."
    assert heard[1:-1] == [f"{name}: equal." for name in names]
    assert re.fullmatch(r"✓ The same bits\. [\d,]+ records in \d+ stages, [\d.]+ s\.", heard[-1])


def test_names_and_roles(done: Page) -> None:
    names: list[str] = done.evaluate("slm2Parity.names()")
    for name in names:
        expect(done.get_by_role("progressbar", name=name, exact=True)).to_have_count(1)
    for group in ("How much", "What computes"):
        expect(done.get_by_role("group", name=group)).to_have_count(1)
    assert done.get_by_role("heading", level=1).count() == 1
    unnamed = done.evaluate(
        """() => [...document.querySelectorAll("button, input, progress, a, section")]
          .filter((e) => !(e.ariaLabel || e.labels?.length || e.textContent.trim() ||
            e.getAttribute("aria-labelledby"))).map((e) => e.outerHTML)"""
    )
    assert unnamed == []
    ids: list[str] = done.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_and_can_be_read(done: Page, width: int, scheme: Any) -> None:
    done.set_viewport_size({"width": width, "height": 900})
    done.emulate_media(color_scheme=scheme)
    assert overflow(done) == []
    assert faint(done) == []
    SHOTS.mkdir(exist_ok=True)
    done.screenshot(path=SHOTS / f"parity-{width}-{scheme}.png")


def test_a_change_in_the_baseline_is_shown_as_a_difference(
    context: BrowserContext, damaged: Damage, serve: Serve
) -> None:
    def plant(data: bytes) -> bytes:
        baseline = json.loads(data)
        stage = baseline["models"]["smollm2-135m"]["stages"]["tokenizer"]
        stage["digests"] = {size: digest[::-1] for size, digest in stage["digests"].items()}
        stage["marks"] = f"{stage['marks'][: 7 * 8]}ffffffff{stage['marks'][8 * 8 :]}"
        return json.dumps(baseline).encode()

    server = serve(damaged("web/parity-baseline.json", plant))
    page = open_page(context, server.url, "?run&size=quick&executor=wasm&stages=tokenizer,prompt")
    wait_for_verdict(page)
    expect(page.get_by_role("heading", name="≠ Not the same bits.")).to_be_visible()
    line = page.locator("[data-stage=tokenizer]")
    expect(line.locator(".verdict")).to_have_text("≠ differs")
    expect(page.locator("[data-stage=prompt] .verdict")).to_have_text("✓ equal")
    terms = line.locator("dt").all_text_contents()
    assert terms == ["First record that differs", "Input", "Baseline", "Found here"]
    index, shown_input, expected, found = line.locator("dd").all_text_contents()
    assert index == "7"
    assert json.loads(shown_input)["op"] in ("encode", "encode_bytes", "encode_runs", "decode")
    assert json.loads(expected)["mark"] == "ffffffff"
    made = downloaded(page)
    assert made.verdict == "differs"
    difference = made.cells[0].stages[0].difference
    assert difference is not None
    assert difference.index == 7
    assert (difference.input, difference.found) == (json.loads(shown_input), json.loads(found))
    # Another input is asked for, as `slm2-web parity` does to make it small.
    asked = {"executor": "wasm", "name": "tokenizer", "input": difference.input}
    assert page.evaluate("(asked) => slm2Parity.output(asked)", asked) == difference.found
    page.close()


def test_a_run_can_be_cancelled_and_begun_again(context: BrowserContext, url: str) -> None:
    page = open_page(context, url, "?stages=prompt.qwen3")
    start, cancel = (page.get_by_role("button", name=name) for name in ("Run the suite", "Cancel"))
    start.click()
    cancel.click()
    expect(start).to_be_visible()
    expect(start).to_be_focused()
    assert page.evaluate("slm2Parity.status().error.code") == "cancelled"
    start.click()
    wait_for_verdict(page)
    assert page.evaluate("slm2Parity.cell().verdict") == "equal"
    page.close()


def test_without_isolation_and_webgpu_the_page_says_so(
    chromium_without_webgpu: Browser, site: Path, serve: Serve
) -> None:
    context = chromium_without_webgpu.new_context()
    page = open_page(
        context,
        serve(site, isolation=False).url,
        "?run&size=quick&executor=wasm&stages=forward.qwen3,boundary",
    )
    wait_for_verdict(page)
    expect(page.get_by_role("radio", name="WebGPU")).to_be_disabled()
    expect(page.locator("#executor-note")).to_contain_text("not cross-origin isolated")
    cell = downloaded(page).cells[0]
    assert (cell.executor, cell.isolated, cell.threads, cell.verdict) == ("wasm-plain", False, 1, "equal")
    context.close()


def test_an_address_that_asks_for_what_there_is_not(context: BrowserContext, url: str) -> None:
    page = open_page(context, url, "?run&stages=alchemy")
    expect(page.get_by_role("alert")).to_contain_text("stages: found alchemy")
    page.goto(f"{url}parity.html?run&size=huge")
    expect(page.get_by_role("alert")).to_contain_text("size: found huge")
    page.close()


def test_the_chat_page_links_to_it(context: BrowserContext, url: str) -> None:
    page = context.new_page()
    page.goto(url)
    page.get_by_role("link", name="check this browser").click()
    expect(page).to_have_url(f"{url}parity.html")
    page.close()
