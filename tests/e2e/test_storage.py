"""What is stored of models: downloads that go on, storage that fails, heals, is shared and is emptied."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from e2e.conftest import add_tiny, link
from e2e.faulty_server import Fault, FaultyServer
from e2e.storagepage import copy_model, open_storage_page, split_weights

OpenPage = Callable[..., Page]
STORED = ("cache",)
FETCH = "fetchModel('tiny')"
BEGIN = "() => { globalThis.running = fetchModel('tiny'); }"


@pytest.fixture(scope="module")
def folder(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with the model `tiny` in four shards, and with `twin`, which has the same files."""
    out = tmp_path_factory.mktemp("storage") / "site"
    shutil.copytree(site, out, copy_function=link)
    add_tiny(out, out.parent)
    split_weights(out / "models" / "tiny", 4)
    copy_model(out / "models" / "tiny", out / "models" / "twin")
    listed = json.loads((out / "site.json").read_bytes())
    listed["models"] += ["tiny", "twin"]
    (out / "site.json").unlink()
    (out / "site.json").write_text(json.dumps(listed), "utf-8")
    (out / "site.json.gz").unlink(missing_ok=True)
    return out


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[FaultyServer]:
    """Serves it."""
    server = FaultyServer(folder)
    yield server
    server.goes_on.set()
    server.close()


@pytest.fixture
def server(running: FaultyServer) -> FaultyServer:
    """The server as each test finds it: nothing is wrong, nothing was sent."""
    running.forget()
    return running


@pytest.fixture(scope="module")
def files(folder: Path) -> dict[str, dict[str, Any]]:
    """The manifest's files by name."""
    manifest = json.loads((folder / "models/tiny/manifest.json").read_bytes())
    return {each["file"]: each for each in [manifest["tokenizer"], *manifest["weights"]["shards"]]}


@pytest.fixture
def visit_storage(chromium: Browser, server: FaultyServer) -> Iterator[OpenPage]:
    """Opens a page of the server in a browser that has never been here."""
    contexts = []

    def make(kind: str = "cache") -> Page:
        contexts.append(chromium.new_context())
        return open_storage_page(contexts[-1], server.url, kind)

    yield make
    for context in contexts:
        context.close()


def whole(server: FaultyServer, files: dict[str, dict[str, Any]], *but: str) -> None:
    """Each file was sent once, in one piece."""
    for name, entry in files.items():
        if name not in but:
            assert server.bytes_of(name) == [(0, entry["bytes"])], name


def codes(got: dict[str, Any]) -> list[str]:
    """Of the loader's warnings."""
    return [warning["code"] for warning in got["warnings"]]


def shard(files: dict[str, dict[str, Any]]) -> str:
    """The name of a shard in the middle."""
    return sorted(files)[2]


@pytest.fixture(scope="module")
def hashes(chromium: Browser, running: FaultyServer) -> list[str]:
    """What the loader hands over when nothing is wrong."""
    running.forget()
    context = chromium.new_context()
    got = open_storage_page(context, running.url).evaluate(FETCH)
    context.close()
    assert got["warnings"] == []
    result: list[str] = got["hashes"]
    return result


@pytest.mark.parametrize("kind", ["cache", "memory"])
def test_a_download_that_is_cut_ten_times_fetches_no_byte_twice(
    kind: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    total = files["tokenizer.slm2tok"]["bytes"]
    cuts = [1, *(total * i // 11 for i in range(2, 10)), total - 1]
    server.faults["tokenizer.slm2tok"] = Fault(cuts=list(cuts))
    got = visit_storage(kind).evaluate(FETCH)
    assert got["hashes"] == hashes
    assert server.bytes_of("tokenizer.slm2tok") == list(zip([0, *cuts], [*cuts, total], strict=True))
    whole(server, files, "tokenizer.slm2tok")
    ranged = [each for each in server.sent if each.asked]
    assert [each.asked for each in ranged] == [f"bytes={cut}-" for cut in cuts]
    assert {each.if_range for each in ranged} == {'"right"'}
    told = [warning["had"] for warning in got["warnings"] if warning["code"] == "asset.interrupted"]
    assert told == cuts
    done = [step[0] for step in got["progress"]]
    assert done == sorted(done), "progress never goes back"
    assert got["stats"]["cached_bytes"] == 0


@pytest.mark.parametrize("kind", STORED)
def test_a_download_goes_on_in_a_later_visit(
    kind: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    name, total = "tokenizer.slm2tok", files["tokenizer.slm2tok"]["bytes"]
    server.faults[name] = Fault(cuts=[100_000], statuses_after_cut=[503] * 5)
    page = visit_storage(kind)
    got = page.evaluate(FETCH)
    assert got["code"] == "asset.unreachable"
    assert "503" in got["message"]
    assert got["detail"]["url"].endswith(name)
    [model] = page.evaluate("storage.list()")
    assert not model["complete"]
    assert {f["name"]: f["stored_bytes"] for f in model["files"]}[name] == 100_000

    got = page.evaluate(FETCH)
    assert got["hashes"] == hashes
    assert server.bytes_of(name) == [(0, 100_000), (100_000, total)]
    whole(server, files, name)
    assert got["stats"]["cached_bytes"] == sum(f["bytes"] for f in files.values()) - (total - 100_000)
    [model] = page.evaluate("storage.list()")
    assert model["complete"]


@pytest.mark.parametrize("kind", STORED)
def test_a_large_file_goes_on_in_a_later_visit(
    kind: str, visit_storage: OpenPage, server: FaultyServer, folder: Path
) -> None:
    """Larger than what is written or read at once, and than a part of the Cache API's store."""
    manifest = json.loads((folder / "models/smollm2-135m/manifest.json").read_bytes())
    entry = manifest["weights"]["shards"][0]
    server.faults[entry["file"]] = Fault(cuts=[10_000_001], statuses_after_cut=[404])
    page = visit_storage(kind)
    assert page.evaluate("fetchModel('smollm2-135m')")["code"] == "asset.unreachable"
    got = page.evaluate("fetchModel('smollm2-135m')")
    assert server.bytes_of(entry["file"]) == [(0, 10_000_001), (10_000_001, entry["bytes"])]
    assert got["warnings"] == []
    server.forget()
    again = page.evaluate("fetchModel('smollm2-135m')")
    assert server.sent == []
    assert again["hashes"] == got["hashes"]
    assert again["hashes"][0] == manifest["tokenizer"]["sha256"]
    print(kind, "from storage:", round(again["stats"]["weights_ms"]), "ms")


def test_a_connection_on_which_nothing_comes_is_given_up(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]], hashes: list[str]
) -> None:
    """With the waiting made short in the loader's copy."""
    name = "tokenizer.slm2tok"
    server.faults[name] = Fault(stalls=True)
    page = visit_storage()

    def impatient(route: Any) -> None:
        body = route.fetch().text()
        for long, short in (("STALL_MS = 30_000", "STALL_MS = 700"), ("CHECK_MS = 2_000", "CHECK_MS = 100")):
            assert long in body
            body = body.replace(long, short)
        route.fulfill(content_type="text/javascript", body=body)

    page.context.route("**/worker/store/download.js", impatient)
    page.evaluate(BEGIN)
    page.wait_for_timeout(400)
    server.faults[name].stalls = False
    got = page.evaluate("running")
    server.goes_on.set()
    assert codes(got) == ["asset.interrupted"]
    assert "nothing came for" in got["warnings"][0]["reason"]
    assert got["hashes"] == hashes


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize(
    ("fault", "second"),
    [
        pytest.param({"ranges": False}, "bytes=50000-", id="no ranges"),
        pytest.param({"etags": ['"a"', '"b"']}, "bytes=50000-", id="another ETag"),
        pytest.param({"etags": ['"a"', '"b"'], "honest": False}, "bytes=50000-", id="If-Range ignored"),
    ],
)
def test_a_server_that_cannot_go_on_gives_the_whole_again(
    kind: str,
    fault: dict[str, Any],
    second: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    name = "tokenizer.slm2tok"
    server.faults[name] = Fault(cuts=[50_000], **copy.deepcopy(fault))
    page = visit_storage(kind)
    got = page.evaluate(FETCH)
    assert got["hashes"] == hashes
    assert codes(got) == ["asset.interrupted"]
    asked = [each.asked for each in server.sent if each.name == name]
    assert asked[:2] == [None, second]
    assert server.bytes_of(name)[-1] == (0, files[name]["bytes"])
    assert got["progress"][-1] == [sum(f["bytes"] for f in files.values()), 0]
    assert page.evaluate(FETCH)["stats"]["cached_bytes"] == sum(f["bytes"] for f in files.values())


@pytest.mark.parametrize("etag", ["", 'W/"weak"'])
def test_without_a_strong_etag_the_hash_decides(
    etag: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    name = "tokenizer.slm2tok"
    server.faults[name] = Fault(cuts=[50_000], etags=[etag])
    got = visit_storage().evaluate(FETCH)
    assert got["hashes"] == hashes
    assert server.bytes_of(name) == [(0, 50_000), (50_000, files[name]["bytes"])]
    assert {each.if_range for each in server.sent if each.name == name} == {None}


@pytest.mark.parametrize("kind", ["cache", "memory"])
@pytest.mark.parametrize(
    ("fault", "found"),
    [
        pytest.param(
            {"announced": 1}, "more than {bytes} bytes: {longer} are announced", id="announces more"
        ),
        pytest.param({"announced": -1}, "{shorter} bytes announced", id="announces less"),
        pytest.param({"surplus": b"x"}, "more than {bytes} bytes", id="sends more"),
        pytest.param({"body": b"?"}, "1 bytes announced", id="another file"),
        pytest.param({"body": "zeros"}, "sha256 ", id="another content"),
    ],
)
def test_a_server_that_lies_is_a_typed_error(
    kind: str,
    fault: dict[str, Any],
    found: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
) -> None:
    """It is asked twice, and nothing of what it said is kept."""
    name = shard(files)
    n_bytes = files[name]["bytes"]
    if fault.get("body") == "zeros":
        fault = {"body": bytes(n_bytes)}
    server.faults[name] = Fault(**fault)
    page = visit_storage(kind)
    got = page.evaluate(FETCH)
    assert got["code"] == "format.model_file"
    assert got["detail"]["file"] == name
    expected = found.format(bytes=n_bytes, longer=n_bytes + 1, shorter=n_bytes - 1)
    assert got["detail"]["found"].startswith(expected)
    assert got["detail"]["allowed"] == {"bytes": n_bytes, "sha256": files[name]["sha256"]}
    assert len([each for each in server.sent if each.name == name]) == 2
    if kind != "memory":
        page.evaluate("idle()")
        [model] = page.evaluate("storage.list()")
        assert {f["name"]: f["stored_bytes"] for f in model["files"]}[name] == 0


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (503, 5), (429, 5)])
def test_a_server_that_refuses_is_asked_a_few_times(
    status: int, times: int, visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]]
) -> None:
    name = shard(files)
    server.faults[name] = Fault(statuses=[status] * 9)
    got = visit_storage().evaluate(FETCH)
    assert got["code"] == "asset.unreachable"
    assert str(status) in got["message"]
    assert len([each for each in server.sent if each.name == name]) == times
    waits = [warning["wait_ms"] for warning in got["warnings"]]
    assert waits == [500, 1000, 2000, 4000][: times - 1], "longer each time"


@pytest.mark.parametrize("kind", STORED)
@pytest.mark.parametrize(
    ("harm", "fetched"),
    [
        pytest.param("flip", lambda n: [(0, n)], id="one bit"),
        pytest.param("blank", lambda n: [(0, n)], id="an end that was never written"),
        pytest.param("cut", lambda n: [(9_000, n)], id="half-written"),
        pytest.param("both", lambda n: [(9_000, n), (0, n)], id="half-written and wrong"),
        pytest.param("grow", lambda n: [(0, n)], id="too long"),
    ],
)
def test_a_stored_file_that_is_damaged_is_fetched_again_alone(
    kind: str,
    harm: str,
    fetched: Callable[[int], list[tuple[int, int]]],
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    name = shard(files)
    page = visit_storage(kind)
    page.evaluate(FETCH)
    server.forget()
    steps = {
        "flip": "flip(sha256)",
        "blank": "blank(sha256, 9000)",
        "cut": "cut(sha256, 9000)",
        "both": "cut(sha256, 9000).then(() => flip(sha256))",
        "grow": "change(sha256, (bytes) => new Uint8Array([...bytes, 0]))",
    }
    page.evaluate(f"(sha256) => {steps[harm]}", files[name]["sha256"])
    got = page.evaluate(FETCH)
    assert got["hashes"] == hashes
    assert {each.name for each in server.sent} == {name}
    assert server.bytes_of(name) == fetched(files[name]["bytes"])
    damaged = [w["file"] for w in got["warnings"] if w["code"] == "asset.damaged"]
    assert damaged == ([] if harm == "cut" else [name])
    total = sum(f["bytes"] for f in files.values())
    assert got["progress"][-1][0] == total
    server.forget()
    assert page.evaluate(FETCH)["stats"]["cached_bytes"] == total
    assert server.sent == []


@pytest.mark.parametrize("kind", STORED)
def test_two_tabs_at_once_fetch_once(
    kind: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    for name in files:
        server.faults[name] = Fault(pace_s=0.005)
    first = visit_storage(kind)
    second = open_storage_page(first.context, server.url)
    for page in (first, second):
        page.evaluate(BEGIN)
    got = [page.evaluate("running") for page in (first, second)]
    assert [each["hashes"] for each in got] == [hashes, hashes]
    whole(server, files)
    total = sum(f["bytes"] for f in files.values())
    assert sum(each["stats"]["cached_bytes"] for each in got) == total


def test_a_tab_that_is_closed_leaves_its_download_to_the_other(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]], hashes: list[str]
) -> None:
    name = "tokenizer.slm2tok"
    server.faults[name] = Fault(pace_s=0.01)
    first = visit_storage()
    second = open_storage_page(first.context, server.url)
    first.evaluate(BEGIN)
    first.wait_for_timeout(300)
    second.evaluate(BEGIN)
    second.wait_for_timeout(100)
    first.close()
    got = second.evaluate("running")
    assert got["hashes"] == hashes
    assert got["stats"]["cached_bytes"] > 0
    first_range, second_range = server.bytes_of(name)
    # What had not come to a whole part of 4 MiB is fetched anew.
    assert 0 <= second_range[0] <= first_range[1]
    assert second_range[1] == files[name]["bytes"]


@pytest.mark.parametrize("kind", STORED)
def test_storage_that_is_full_is_a_warning(
    kind: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    """Files that find room are stored; one that doesn't is fetched each time, until it does."""
    page = visit_storage(kind)
    origin = server.url.rstrip("/")
    session = page.context.new_cdp_session(page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 150_000})
    got = page.evaluate(FETCH)
    assert got["hashes"] == hashes
    assert codes(got) == ["asset.no_room"]
    assert got["warnings"][0]["file"] == "tokenizer.slm2tok"
    assert got["warnings"][0]["bytes"] == files["tokenizer.slm2tok"]["bytes"]
    [model] = page.evaluate("storage.list()")
    assert not model["complete"]
    assert {f["name"]: f["stored"] for f in model["files"]}["tokenizer.slm2tok"] is False

    server.forget()
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, "quotaSize": 5_000_000})
    got = page.evaluate(FETCH)
    assert got["warnings"] == []
    assert page.evaluate("storage.list()")[0]["complete"]
    assert server.bytes_of("tokenizer.slm2tok") == [(0, files["tokenizer.slm2tok"]["bytes"])]


def test_storage_that_fills_up_meanwhile(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]], hashes: list[str]
) -> None:
    """The browser's estimate says that there is room, and the write fails: the beginning is removed."""
    page = visit_storage()

    def full(route: Any) -> None:
        response = route.fetch()
        harm = """
          const { put } = Cache.prototype;
          let left = 100_000;
          Cache.prototype.put = async function (request, response) {
            const { byteLength } = await response.clone().arrayBuffer();
            if (byteLength > left) throw new DOMException("no room", "QuotaExceededError");
            left -= byteLength;
            return put.call(this, request, response);
          };
        """
        route.fulfill(response=response, body=f"{harm}\n{response.text()}")

    page.context.route("**/worker/loader.js", full)
    got = page.evaluate(FETCH)
    assert got["hashes"] == hashes
    assert codes(got) == ["asset.no_room"]
    whole(server, files)
    stored = {f["name"]: f["stored_bytes"] for f in page.evaluate("storage.list()")[0]["files"]}
    assert stored["tokenizer.slm2tok"] == 0


def test_records_of_others_are_left_out(visit_storage: OpenPage) -> None:
    """A manifest that is no JSON, or none of ours, hides no other model, and goes with all."""
    page = visit_storage()
    page.evaluate(FETCH)
    for manifest in ["", "null", "{", '{"weights": {"shards": {}}, "tokenizer": 1}']:
        page.evaluate(
            """async (manifest) => {
              const url = new URL("models/odd/manifest.json", document.baseURI).href;
              const text = JSON.stringify({ url, ms: Date.now(), complete: false, verified: {}, manifest });
              const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
              const hex = (byte) => byte.toString(16).padStart(2, "0");
              const name = Array.from(new Uint8Array(digest), hex).join("");
              const cache = await caches.open("slm2-models");
              await cache.put(`/slm2-models/record/${name}`, new Response(text));
            }""",
            manifest,
        )
    assert [model["name"] for model in page.evaluate("storage.list()")] == ["tiny"]
    page.evaluate("storage.remove('*')")
    assert page.evaluate("storage.list()") == []
    keys = "caches.open('slm2-models').then((cache) => cache.keys()).then((keys) => keys.length)"
    assert page.evaluate(keys) == 0


def test_list_and_remove(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]]
) -> None:
    """Files that models share are stored once, and stay as long as one of them does."""
    page = visit_storage()
    assert page.evaluate("storage.list()") == []
    page.evaluate(FETCH)
    server.forget()
    got = page.evaluate("fetchModel('twin')")
    assert server.sent == []
    total = sum(f["bytes"] for f in files.values())
    assert got["stats"]["cached_bytes"] == total

    models = page.evaluate("storage.list()")
    assert [model["name"] for model in models] == ["twin", "tiny"]
    for model in models:
        assert model["title"] == "Tiny"
        assert model["url"] == f"{server.url}models/{model['name']}/"
        assert (model["bytes"], model["stored_bytes"], model["complete"]) == (total, total, True)
        assert [(f["name"], f["bytes"], f["sha256"]) for f in model["files"]] == [
            (f["file"], f["bytes"], f["sha256"]) for f in files.values()
        ]
        assert all(f["stored"] and f["verified"].startswith("20") for f in model["files"])
    estimate = page.evaluate("storage.estimate()")
    assert (estimate["kind"], estimate["models_bytes"], estimate["persisted"]) == ("cache", total, False)
    assert estimate["quota"] > estimate["usage"] >= total

    page.evaluate("storage.remove('twin')")
    assert [model["name"] for model in page.evaluate("storage.list()")] == ["tiny"]
    assert page.evaluate(FETCH)["stats"]["cached_bytes"] == total
    error = "(name) => storage.remove(name).then(() => 'removed', (e) => [e.code, e.detail])"
    code, detail = page.evaluate(error, "twin")
    assert (code, detail["allowed"]) == ("input.model", "tiny | *")
    assert page.evaluate("storage.remove().then(() => 'removed', (e) => e.code)") == "input.model"
    page.evaluate("storage.remove('*')")
    assert page.evaluate("storage.list()") == []
    assert page.evaluate("storage.estimate()")["models_bytes"] == 0


def test_a_model_that_is_being_fetched_is_not_removed(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]], hashes: list[str]
) -> None:
    server.faults["tokenizer.slm2tok"] = Fault(pace_s=0.02)
    page = visit_storage()
    page.evaluate(BEGIN)
    page.wait_for_timeout(500)
    got = page.evaluate("storage.remove('tiny').then(() => 'removed', (e) => [e.code, e.detail.file])")
    assert got == ["protocol.state", "tokenizer.slm2tok"]
    assert page.evaluate("running")["hashes"] == hashes
    assert page.evaluate("storage.list()")[0]["complete"]


@pytest.mark.parametrize("kind", STORED)
def test_a_new_version_shares_what_is_equal_and_takes_over_when_it_is_whole(
    kind: str,
    visit_storage: OpenPage,
    server: FaultyServer,
    folder: Path,
    files: dict[str, dict[str, Any]],
    hashes: list[str],
) -> None:
    page = visit_storage(kind)
    page.evaluate(FETCH)
    manifest = folder / "models/tiny/manifest.json"
    first = manifest.read_text("utf-8")
    last = sorted(files)[-1]
    data = (folder / "models/tiny" / last).read_bytes()
    changed = bytes([data[0] ^ 1]) + data[1:]
    sha256 = hashlib.sha256(changed).hexdigest()
    name = f"weights-03.{sha256[:8]}.bin"
    (folder / "models/tiny" / name).write_bytes(changed)
    try:
        manifest.write_text(first.replace(last, name).replace(files[last]["sha256"], sha256), "utf-8")
        # Half of the new one: without a network the old one is still whole.
        server.forget()
        server.faults[name] = Fault(statuses=[404])
        assert page.evaluate(FETCH)["code"] == "asset.unreachable"
        assert [model["complete"] for model in page.evaluate("storage.list()")] == [False, True]
        page.context.route("**/manifest.json", lambda route: route.abort())
        assert page.evaluate(FETCH)["hashes"] == hashes
        page.context.unroute("**/manifest.json")

        server.forget()
        got = page.evaluate(FETCH)
        assert got["hashes"] != hashes
        assert [each.name for each in server.sent] == [name]
        [model] = page.evaluate("storage.list()")
        assert model["complete"]
        assert page.evaluate("storage.estimate()")["models_bytes"] == model["bytes"], "the old shard is gone"
    finally:
        manifest.write_text(first, "utf-8")
        (folder / "models/tiny" / name).unlink()


REPLY = """async () => {
  const warnings = [];
  const onWarning = ({ code }) => warnings.push(code);
  const slm = await client.SLM2.load({ model: "tiny", executor: "wasm", onWarning });
  const chat = slm.chat([{ role: "user", content: "Hello" }], { temperature: 0, max_tokens: 20 });
  const { generated_ids } = await chat.result;
  const same = slm.storage === client.SLM2.storage;
  await slm.dispose();
  return { warnings, generated_ids, same };
}"""


def test_replies_are_the_same_whatever_the_storage_does(
    visit_storage: OpenPage, server: FaultyServer, files: dict[str, dict[str, Any]]
) -> None:
    page = visit_storage()
    healthy = page.evaluate(REPLY)
    assert healthy["warnings"] == []
    assert healthy["same"]
    assert len(healthy["generated_ids"]) == 20
    page.evaluate("(sha256) => flip(sha256)", files[shard(files)]["sha256"])
    server.forget()
    healed = page.evaluate(REPLY)
    assert healed["warnings"] == ["asset.damaged"]
    assert healed["generated_ids"] == healthy["generated_ids"]
    assert {each.name for each in server.sent} == {shard(files)}

    private = visit_storage("memory").evaluate(REPLY)
    assert private["warnings"] == ["asset.no_storage"]
    assert private["generated_ids"] == healthy["generated_ids"]

    full = visit_storage()
    session = full.context.new_cdp_session(full)
    session.send("Storage.overrideQuotaForOrigin", {"origin": server.url.rstrip("/"), "quotaSize": 1000})
    got = full.evaluate(REPLY)
    assert "asset.no_room" in got["warnings"]
    assert got["generated_ids"] == healthy["generated_ids"]


def test_the_storage_page(visit_storage: OpenPage, server: FaultyServer, tmp_path: Path) -> None:
    page = visit_storage()
    page.evaluate(FETCH)
    page.evaluate("fetchModel('twin')")
    page.context.route("**/models/**", lambda route: route.abort())
    page.goto(server.url)
    page.get_by_role("link", name="Storage").click()
    page.wait_for_url("**/storage.html")
    models = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="Tiny"))
    expect(models).to_have_count(2)
    expect(models.first).to_contain_text("twin · 0.3 MB, complete; verified")
    models.first.get_by_text("5 files").click()
    expect(models.first.get_by_role("row")).to_have_count(6)
    expect(models.first.get_by_role("row").nth(1)).to_contain_text("tokenizer.slm2tok")
    expect(page.locator("#room-figures")).to_contain_text("cache storage")

    expect(models.first.get_by_role("button")).to_have_accessible_name("Remove Tiny (twin)")

    # By keyboard, and only when it is meant.
    models.first.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Remove Tiny?")
    page.keyboard.press("Escape")
    expect(models).to_have_count(2)
    models.first.get_by_role("button").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(models).to_have_count(1)
    expect(page.get_by_role("status")).to_have_text("Tiny removed.")
    assert page.evaluate("document.activeElement.id") == "models-title"
    models.first.get_by_role("button").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No model is stored.")).to_be_visible()
    expect(page.locator("#runs")).to_have_text("0 models, 0.0 KB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 800, 1400])
def test_the_storage_page_fits(
    width: int, scheme: Any, chromium: Browser, server: FaultyServer, tmp_path: Path
) -> None:
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = open_storage_page(context, server.url)
    page.evaluate(FETCH)
    server.faults["tokenizer.slm2tok"] = Fault(statuses=[404])
    page.goto(f"{server.url}storage.html")
    page.get_by_text("5 files").click()
    expect(page.get_by_role("row").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=tmp_path / f"storage-{width}-{scheme}.png")
    context.close()
