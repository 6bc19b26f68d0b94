"""What goes wrong is shown with its code and what to do; what can heal, heals; no reply is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from e2e.chatpage import ChatPage
from e2e.conftest import Open, Serve
from slm2_web.protocol import PROTOCOL_VERSION

Damaged = Callable[[str, Callable[[bytes], bytes]], Path]
SHARDS = "models/*/weights-01.*.bin"


def _flip(data: bytes) -> bytes:
    """One bit, in the middle."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        pytest.param(_flip, "sha256", id="one bit flipped"),
        pytest.param(lambda data: data[:-1], "bytes", id="one byte short"),
        pytest.param(lambda data: data + b"\0", "more than", id="one byte long"),
    ],
)
def test_damaged_shard(
    change: Callable[[bytes], bytes], found: str, damaged: Damaged, serve: Serve, visit: Open
) -> None:
    chat = visit(serve(damaged(SHARDS, change)).url)
    text = chat.expect_error("format.model_file")
    assert re.search(rf"weights-01\.[0-9a-f]{{8}}\.bin: found .*{found}", text)
    chat.wait("error")
    assert sum("weights-01" in url for url in chat.requests) == 2, "fetched once more, alone"
    assert sum("weights-00" in url for url in chat.requests) == 1


@pytest.mark.parametrize("is_listed", [True, False])
def test_damaged_manifest(is_listed: bool, damaged: Damaged, serve: Serve, visit: Open) -> None:
    """It has the hash that site.json has; of a model that was put beside the site's own, none is known."""
    name = "models/smollm2-135m/manifest.json"
    folder = damaged(name, lambda data: data[: len(data) // 2])
    if not is_listed:
        site = json.loads((folder / "site.json").read_bytes())
        del site["files"][name]
        for each in folder.glob("site.json*"):
            each.unlink()  # they are links, and one is what the server would rather send
        (folder / "site.json").write_text(json.dumps(site), "utf-8")
    text = visit(serve(folder).url).expect_error("asset.hash" if is_listed else "format.manifest")
    assert ("manifest.json: found sha256" if is_listed else "JSON") in text


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("new WebAssembly.CompileError('too new')", "device.no_wasm"),
        ("new RangeError('out of memory')", "device.out_of_memory"),
    ],
)
def test_python_that_the_browser_refuses(error: str, code: str, visit: Open, url: str) -> None:
    """Pyodide itself says so on the console, and waits for ever."""

    def refusing(route: Route) -> None:
        response = route.fetch()
        harm = f"WebAssembly.instantiateStreaming = async () => {{ throw {error}; }};"
        route.fulfill(response=response, body=f"{harm}\n{response.text()}")

    chat = visit("about:blank")
    chat.url = url
    chat.page.context.route("**/worker/worker.js", refusing)
    assert "runtime" in chat.open().expect_error(code)


def test_model_that_is_not_there(visit: Open, url: str) -> None:
    chat = visit(url, "?model=gpt-17")
    assert "gpt-17" in chat.expect_error("input.model")
    chat.page.get_by_role("button", name="Use the model of this site").click()
    chat.wait("loading")


def test_executor_that_is_not_there(visit: Open, url: str) -> None:
    chat = visit(url, "?executor=abacus&x=y")
    assert "abacus" in chat.expect_error("input.params")
    chat.page.get_by_role("button", name="Use the fastest that works").click()
    chat.page.wait_for_url("**/?x=y")
    chat.wait("loading")


def test_no_webgpu(visit: Open, url: str, chromium_without_webgpu: Browser) -> None:
    chat = visit(url, "?executor=webgpu", chromium_without_webgpu)
    text = chat.expect_error("device.no_webgpu")
    assert "Use a browser with WebGPU enabled" in text
    expect(chat.page.get_by_role("button", name="Try again")).to_be_visible()


def test_worker_that_cannot_be_had(visit: Open, url: str) -> None:
    """A message that waits survives the failure, and can be taken back; nothing typed is lost."""
    chat = visit("about:blank")
    chat.url = url
    chat.page.context.route("**/worker/worker.js", lambda route: route.abort())
    chat.open().expect_error("asset.unreachable")
    chat.ask("Are you there?")
    expect(chat.page.locator(".turn")).to_contain_text("waits for the model")
    chat.page.get_by_role("button", name="Stop").click()
    expect(chat.page.get_by_label("Message")).to_have_value("Are you there?")
    chat.page.get_by_role("button", name="Send").click()
    chat.page.get_by_label("Message").fill("And you?")
    chat.page.keyboard.press("Escape")
    expect(chat.page.get_by_label("Message")).to_have_value("Are you there?\n\nAnd you?")
    expect(chat.page.locator(".turn")).to_have_count(0)


def test_worker_that_dies(visit: Open, url: str) -> None:
    def mortal(route: Route) -> None:
        response = route.fetch()
        body = response.text() + '\nsetTimeout(() => { throw new Error("no more"); }, 500);'
        route.fulfill(response=response, body=body)

    chat = visit("about:blank")
    chat.url = url
    chat.page.context.route("**/worker/worker.js", mortal)
    assert "no more" in chat.open().expect_error("device.worker")


def test_connection_that_breaks_can_be_tried_again(visit: Open, url: str) -> None:
    chat = visit("about:blank")
    chat.url = url
    chat.page.context.route("**/weights-02.*", lambda route: route.abort())
    assert "weights-02" in chat.open().expect_error("asset.unreachable")
    chat.page.context.unroute("**/weights-02.*")
    chat.page.get_by_role("button", name="Try again").click()
    chat.wait("ready")
    expect(chat.page.locator(".error")).to_have_count(0)


def test_settings_that_cannot_be_kept(visit: Open, url: str) -> None:
    chat = visit("about:blank")
    chat.url = url
    chat.page.add_init_script(
        """Object.defineProperty(window, "localStorage", { get() { throw new DOMException("denied"); } });"""
    )
    chat.open().set(temperature="0.5")
    chat.page.get_by_role("button", name="Settings").click()
    expect(chat.page.locator("#settings-note")).to_contain_text("keeps no settings")


def test_page_and_worker_of_two_versions(visit: Open, url: str) -> None:
    def older(route: Route) -> None:
        response = route.fetch()
        body = response.text().replace(f"PROTOCOL_VERSION = {PROTOCOL_VERSION}", "PROTOCOL_VERSION = 1")
        assert body != response.text()
        route.fulfill(response=response, body=body)

    chat = visit("about:blank")
    chat.url = url
    seen: list[str] = []

    def second_only(route: Route) -> None:
        # The page's copy is asked for first; the workers' copies are the old ones.
        seen.append(route.request.url)
        route.continue_() if len(seen) == 1 else older(route)

    chat.page.context.route("**/worker/protocol.js", second_only)
    chat.open().expect_error("protocol.version")
    expect(chat.page.get_by_role("button", name="Reload the page")).to_be_visible()


def test_second_visit_needs_no_server_and_heals_its_storage(site: Path, serve: Serve, visit: Open) -> None:
    server = serve(site)
    chat = visit("about:blank")
    chat.url = server.url
    chat.page.add_init_script(
        """globalThis.asked = 0;
        StorageManager.prototype.persisted = async () => false;
        StorageManager.prototype.persist = async () => (globalThis.asked += 1) > 0;"""
    )
    chat.open()
    assert chat.page.evaluate("asked") == 0, "not before there is something to keep"
    chat.wait("ready")
    expect(chat.page.locator("#notes")).to_contain_text("kept for use without a network", timeout=60_000)
    assert chat.page.evaluate("asked") == 0, "not before it has proved useful"

    # A stored file with a wrong bit is dropped and fetched again, that one alone.
    chat.page.evaluate(
        """async () => {
          const cache = await caches.open("slm2-models");
          const key = (await cache.keys()).find((request) => request.url.includes("/sha256/"));
          const kept = await cache.match(key);
          const bytes = new Uint8Array(await kept.arrayBuffer());
          bytes[bytes.length >> 1] ^= 1;
          await cache.put(key, new Response(bytes, { headers: kept.headers }));
        }"""
    )
    chat.requests.clear()
    chat.page.reload()
    chat.wait("ready")
    fetched = [url for url in chat.requests if re.search(r"/models/.*\.(bin|slm2tok)$", url)]
    assert len(fetched) == 1, fetched
    expect(chat.page.locator("#notes")).to_contain_text("asset.damaged")
    print("warm load:", chat.page.locator("#loading-title").inner_text(), chat.stages())

    server.close()
    chat.requests.clear()
    chat.page.reload()
    chat.wait("ready")
    assert "from cache" in chat.stages()["weights"]
    assert chat.page.evaluate("crossOriginIsolated"), "the kept responses keep their headers"
    print("offline load:", chat.page.locator("#loading-title").inner_text(), chat.stages())
    run = chat.set(temperature="0", max_tokens="2").reply("What is 2+2?")
    assert run["generated_ids"] == [504, 2988]
    assert chat.page.evaluate("asked") == 1

    # So does the other page, with the tokenizer that the chat has kept.
    chat.page.get_by_role("button", name="Chats").click()  # where the links are on a narrow page
    chat.page.get_by_role("link", name="Tokenizer").click()
    expect(chat.page.locator(".token").first).to_be_visible(timeout=60_000)


def test_lone_surrogate_is_refused(site: Path, chat: ChatPage) -> None:
    chat.page.get_by_label("Message").evaluate(
        """(field) => { field.value = "What is \\ud83d this?"; field.dispatchEvent(new Event("input")); }"""
    )
    chat.page.get_by_role("button", name="Send").click()
    text = chat.expect_error("input.text")
    assert "U+D83D" in text
    assert "index 8" in text
    chat.wait("ready")
    chat.page.get_by_label("Message").fill("A draft.")
    chat.page.get_by_role("button", name="Edit the message").click()
    expect(chat.page.locator(".turn")).to_have_count(0)
    assert chat.page.get_by_label("Message").evaluate("(field) => field.value.charCodeAt(8)") == 0xD83D
    expect(chat.page.get_by_label("Message")).to_have_value(re.compile(r"\n\nA draft\.$"))
    chat.page.get_by_label("Message").fill("")


def test_message_that_does_not_fit(chat: ChatPage) -> None:
    chat.ask("word " * 5000)
    chat.expect_error("input.budget")
    chat.wait("ready")
    chat.page.locator(".error").get_by_role("button", name="New chat").click()
    expect(chat.page.locator(".turn")).to_have_count(0)
