"""Conversations are kept in this browser: opened again, renamed, exported, imported, deleted and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from e2e.chatpage import KEPT_TURNS, ChatPage
from e2e.conftest import Open

GREEDY = 'localStorage.setItem(\'slm2-settings\', \'{"temperature": "0", "max_tokens": "5"}\')'
STORED = "html[data-conversations=ready]"


@pytest.fixture(scope="module")
def chat(context: BrowserContext, tiny_url: str) -> ChatPage:
    """The page with the tiny model, whose replies come fast; two conversations."""
    context.add_init_script(GREEDY)
    chat = ChatPage(context, tiny_url).open("?model=tiny").wait("ready")
    chat.reply("What is 2+2?")
    chat.reply("And 3+3?")
    chat.page.get_by_role("button", name="New chat").click()
    chat.reply("مرحبا")
    return chat


def opened(page: Page) -> None:
    """Opens the list."""
    page.get_by_role("button", name="Chats", exact=True).click()
    expect(page.locator("#chats")).to_be_visible()


def exported(page: Page, name: str) -> dict[str, Any]:
    """The file that a button of the list offers."""
    with page.expect_download() as download:
        page.get_by_role("button", name=name).click()
    result: dict[str, Any] = json.loads(Path(download.value.path()).read_bytes())
    return result


def test_list_opens_renames_deletes_and_takes_back(chat: ChatPage) -> None:
    page = chat.page
    lines = page.locator("#chat-list .chat")
    titles = page.locator("#chat-list .chat-title")
    opened(page)
    expect(titles).to_have_text(["مرحبا", "What is 2+2?"])
    expect(titles.first).to_have_attribute("aria-current", "true")
    page.get_by_role("button", name="What is 2+2?", exact=True).click()
    expect(page.locator("#chats")).to_be_hidden()
    expect(page.locator(".asked .text")).to_have_text(["What is 2+2?", "And 3+3?"])
    # It goes on where it ended.
    before = chat.transcript()
    run = chat.reply("And 4+4?")
    both = before["prompt_ids"] + before["generated_ids"]
    assert run["prompt_ids"][: len(before["prompt_ids"])] == both[: len(before["prompt_ids"])]
    opened(page)
    expect(titles).to_have_text(["What is 2+2?", "مرحبا"])
    expect(lines.first).to_contain_text("3 replies")
    page.get_by_role("button", name="Rename “What is 2+2?”").click()
    page.get_by_label("New name of").fill("<b>Sums</b>")
    page.keyboard.press("Enter")
    expect(titles.first).to_have_text("<b>Sums</b>")
    page.get_by_role("button", name="Delete “<b>Sums</b>”").click()
    expect(titles).to_have_text(["مرحبا"])
    expect(page.locator(".turn")).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(titles).to_have_text(["<b>Sums</b>", "مرحبا"])
    page.keyboard.press("Escape")
    # A reload finds the list as it was; a deleted one can come back later, too.
    page.reload()
    chat.wait("ready")
    opened(page)
    page.get_by_role("button", name="Delete “مرحبا”").click()
    page.get_by_role("button", name="Close").click()
    opened(page)
    page.get_by_text("Deleted (1)").click()
    page.get_by_role("button", name="Restore “مرحبا”").click()
    expect(titles).to_have_count(2)
    page.keyboard.press("Escape")


def test_export_and_import(chat: ChatPage, visit: Open, tiny_url: str, tmp_path: Path) -> None:
    """What comes back in another browser is what went out, transcripts too."""
    page = chat.page
    opened(page)
    one = exported(page, "Export “<b>Sums</b>”")
    everything = exported(page, "Export all")
    page.keyboard.press("Escape")
    assert [each["title"] for each in everything["conversations"]] == ["<b>Sums</b>", "مرحبا"]
    assert everything["conversations"][0] == one["conversations"][0]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(everything), "utf-8")
    other = visit(tiny_url, "?model=tiny").page
    other.wait_for_selector(STORED, state="attached")
    opened(other)
    other.locator("#import-file").set_input_files(path)
    expect(other.locator("#chats-status")).to_have_text("2 conversations imported.")
    again = exported(other, "Export all")
    assert again["conversations"] == everything["conversations"]
    other.get_by_role("button", name="<b>Sums</b>", exact=True).click()
    expect(other.locator(".turn")).to_have_count(3)
    run = json.loads(other.evaluate(KEPT_TURNS)[-1]["answered"]["result"]["transcript"])
    assert run["sha256"][:8] in other.locator(".print").last.inner_text()


def test_a_hostile_file_is_refused_whole(chat: ChatPage, tmp_path: Path) -> None:
    page = chat.page
    opened(page)
    good = exported(page, "Export all")

    def changed(change: Callable[[dict[str, Any]], object]) -> str:
        copy = json.loads(json.dumps(good))
        change(copy)
        return json.dumps(copy)

    def result(file: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = file["conversations"][1]["turns"][0]["answered"]["result"]
        return found

    def transcript(file: dict[str, Any], **changes: object) -> None:
        result(file)["transcript"] = json.dumps({**json.loads(result(file)["transcript"]), **changes})

    files = {
        "": "JSON",
        "[": "JSON",
        "null": "format",
        "{}": "format",
        "[" * 100_000 + "]" * 100_000: "JSON",
        changed(lambda f: f.update(version=2)): "version",
        changed(lambda f: f.update(more=1)): "more",
        changed(lambda f: f.update(conversations={})): "conversations",
        changed(lambda f: f["conversations"][1].update(title="")): "conversations[1].title",
        changed(lambda f: f["conversations"][1].update(title="x" * 201)): "conversations[1].title",
        changed(lambda f: f["conversations"][1].update(created="soon")): "conversations[1].created",
        changed(lambda f: f["conversations"][1].pop("turns")): "conversations[1].turns",
        changed(lambda f: f["conversations"][1]["turns"][0].update(question="\ud800")): "turns[0].question",
        changed(lambda f: f["conversations"][1]["turns"][0].update(answered=None)): "turns[0].answered",
        changed(lambda f: result(f).update(text="another")): "result.text",
        changed(lambda f: result(f).update(reason="bored")): "result.reason",
        changed(lambda f: result(f).update(tool_calls=[{"name": 1, "arguments": ""}])): "tool_calls[0].name",
        changed(lambda f: result(f).update(transcript="{")): "result.transcript",
        changed(lambda f: transcript(f, version=1)): "transcript.version",
        changed(lambda f: transcript(f, sha256="x")): "transcript.sha256",
        changed(lambda f: transcript(f, generated_ids=[-1])): "transcript.generated_ids",
        changed(lambda f: transcript(f, ledger={"parts": [1]})): "transcript.ledger",
        changed(lambda f: transcript(f, timings={})): "transcript.timings",
        changed(lambda f: transcript(f, request=[])): "transcript.request",
    }
    path = tmp_path / "in.json"
    for text, place in files.items():
        path.write_text(text, "utf-8")
        page.locator("#import-file").set_input_files(path)
        card = page.locator("#chats-error .error")
        expect(card).to_contain_text("format.conversation")
        expect(card).to_contain_text(place)
        page.locator("#chats-error").evaluate("(e) => e.replaceChildren()")
    path.write_bytes(b"\xff")
    page.locator("#import-file").set_input_files(path)
    expect(page.locator("#chats-error .error")).to_contain_text("UTF-8")
    expect(page.locator("#chat-list .chat")).to_have_count(2)
    page.keyboard.press("Escape")


def test_two_tabs_lose_nothing(chat: ChatPage, context: BrowserContext) -> None:
    """Both go on from the same conversation: the second to be stored becomes one of its own."""
    page = chat.page
    opened(page)
    page.get_by_role("button", name="مرحبا", exact=True).click()
    other = ChatPage(context, chat.url).open("?model=tiny").wait("ready")
    opened(other.page)
    other.page.get_by_role("button", name="مرحبا", exact=True).click()
    chat.reply("Here")
    other.reply("There")
    opened(page)
    expect(page.locator("#chat-list .chat")).to_have_count(3)
    page.keyboard.press("Escape")
    for tab, text in ((page, "Here"), (other.page, "There")):
        assert [turn["question"] for turn in tab.evaluate(KEPT_TURNS)] == ["مرحبا", text]
    other.page.close()


# Clicks, as soon as a reply that is asked for later has begun to come.
WHEN_IT_COMES = """(selectors) => {
  const sees = (find) => new Promise((resolve, reject) => {
    const look = () => find() && (observer.disconnect(), clearTimeout(late), resolve(find()));
    const late = setTimeout(() => reject(new Error(`${find} has not been seen`)), 60_000);
    const observer = new MutationObserver(look);
    const all = { childList: true, subtree: true, characterData: true, attributes: true };
    observer.observe(document, all);
    look();
  });
  const comes = () => {
    const text = document.querySelector(".turn:last-child .reply[aria-busy=true] .text")?.textContent ?? "";
    return document.documentElement.dataset.state === "busy" && text.length > 9;
  };
  globalThis.clicked = sees(comes).then(async () => {
    for (const selector of selectors) (await sees(() => document.querySelector(selector))).click();
  });
}"""


def test_a_reply_that_is_left_is_stored_where_it_began(visit: Open, tiny_url: str) -> None:
    """On numpy, which takes seconds for what the kernels do before anybody can click."""
    chat = visit(tiny_url, "?model=tiny&executor=reference").wait("ready")
    page = chat.page
    page.evaluate(WHEN_IT_COMES, ["#new-chat"])
    chat.set(temperature="0", max_tokens="600").ask("Left")
    page.evaluate("clicked")
    chat.wait("ready")
    expect(page.locator(".turn")).to_have_count(0)
    opened(page)
    page.get_by_role("button", name="Left", exact=True).click()
    expect(page.locator(".turn")).to_have_count(1)
    [turn] = page.evaluate(KEPT_TURNS)
    assert turn["answered"]["result"]["reason"] == "cancelled"
    assert turn["answered"]["result"]["text"] != ""

    # One of a conversation that is deleted meanwhile goes with it.
    page.evaluate(WHEN_IT_COMES, ["#open-chats", "[aria-label='Delete “Left”']"])
    chat.ask("Deleted")
    page.evaluate("clicked")
    chat.wait("ready")
    expect(page.get_by_role("status").filter(has_text="is deleted")).to_be_visible()
    expect(page.get_by_role("button", name="Left", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Left", exact=True).click()
    expect(page.locator(".turn")).to_have_count(1)
    assert [turn["question"] for turn in page.evaluate(KEPT_TURNS)] == ["Left"]


def test_a_name_that_is_being_typed_stays(chat: ChatPage, context: BrowserContext) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    chat.reply("Left")
    opened(page)
    page.get_by_role("button", name="Rename “Left”").click()
    page.get_by_label("New name of").fill("Le")
    other = context.new_page()
    other.goto(f"{chat.url}tokenizer.html")
    other.evaluate("new BroadcastChannel('slm2-conversations').postMessage(null)")
    other.close()
    page.keyboard.type("ft")
    page.wait_for_timeout(300)
    expect(page.get_by_label("New name of")).to_have_value("Left")
    expect(page.get_by_label("New name of")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Renamed: “Left”.")).to_be_visible()
    page.keyboard.press("Escape")


def test_one_that_cannot_be_read_keeps_no_other_from_being_exported(chat: ChatPage) -> None:
    page = chat.page
    page.evaluate(
        """() => new Promise((resolve, reject) => {
          const request = indexedDB.open("slm2-conversations");
          request.onsuccess = () => {
            const stores = request.result.transaction(["heads", "turns"], "readwrite");
            const heads = stores.objectStore("heads").getAll();
            heads.onsuccess = () => {
              stores.objectStore("heads").put({ ...heads.result[0], id: "odd", title: "Odd", deleted: null });
              stores.objectStore("turns").put({ id: "odd", turns: 7 });
            };
            stores.oncomplete = () => resolve(request.result.close());
            stores.onerror = () => reject(stores.error);
          };
        })"""
    )
    opened(page)
    # The list is shown as it was while the store is read.
    expect(page.get_by_role("button", name="Delete “Odd”")).to_be_visible()
    n_lines = page.locator("#chat-list .chat").count()
    everything = exported(page, "Export all")
    assert len(everything["conversations"]) == n_lines - 1 > 0
    expect(page.locator("#chats-error .error")).to_contain_text("format.conversation")
    page.get_by_role("button", name="Delete “Odd”").click()
    page.keyboard.press("Escape")


def test_where_alt_writes_its_keys_leave_the_field_alone(visit: Open, tiny_url: str) -> None:
    chat = visit("about:blank")
    chat.url = tiny_url
    chat.page.add_init_script("Object.defineProperty(Navigator.prototype, 'platform', { value: 'MacIntel' })")
    page = chat.open("?model=tiny").wait("ready").page
    page.get_by_label("Message").focus()
    page.keyboard.press("Alt+c")
    expect(page.locator("#chats")).to_be_hidden()
    page.get_by_role("button", name="Model", exact=True).focus()
    page.keyboard.press("Alt+c")
    expect(page.locator("#chats")).to_be_visible()


def test_without_a_database(chromium: Browser, tiny_url: str) -> None:
    """As in some private windows: the page says so, and the tab keeps its own."""
    context = chromium.new_context()
    context.add_init_script(GREEDY)
    context.add_init_script(
        "IDBFactory.prototype.open = () => { throw new DOMException('no', 'SecurityError'); }"
    )
    chat = ChatPage(context, tiny_url).open("?model=tiny").wait("ready")
    expect(chat.page.locator("#notes")).to_contain_text("asset.not_saved")
    chat.reply("What is 2+2?")
    chat.page.reload()
    expect(chat.page.locator(".turn")).to_have_count(1)
    opened(chat.page)
    expect(chat.page.locator("#chats-lasting")).to_be_visible()
    expect(chat.page.locator("#chat-list .chat")).to_have_count(1)
    context.close()


def test_model_picker_and_right_to_left(chat: ChatPage) -> None:
    page = chat.page
    page.get_by_role("button", name="New chat").click()
    page.get_by_role("button", name="Model", exact=True).click()
    models = page.locator("#model-list .model")
    expect(models).to_have_count(1)
    expect(models).to_contain_text("SmolLM2 135M Instruct")
    expect(models).to_contain_text("99.1 MB")
    expect(models).to_contain_text("Apache-2.0")
    page.keyboard.press("Escape")
    page.get_by_label("Message").fill("مرحبا بالعالم")
    assert page.get_by_label("Message").evaluate("(e) => e.matches(':dir(rtl)')")
    page.get_by_label("Message").fill("")
    opened(page)
    title = page.locator("#chat-list .chat-title span", has_text="مرحبا").first
    assert title.evaluate("(e) => e.matches(':dir(rtl)')")
    page.keyboard.press("Escape")


def test_it_can_be_installed(chat: ChatPage) -> None:
    """Chromium's own check of the manifest and its icons finds nothing wrong."""
    session = chat.page.context.new_cdp_session(chat.page)
    manifest = session.send("Page.getAppManifest")
    assert manifest["errors"] == []
    assert json.loads(manifest["data"])["display"] == "standalone"
    problems = session.send("Page.getInstallabilityErrors")["installabilityErrors"]
    # A window without a profile, as the tests have, is never offered an installation.
    assert [each["errorId"] for each in problems if each["errorId"] != "in-incognito"] == []
