"""A page without a model in which the loader runs alone, as client.js starts it, and says all that it did."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, Page

# `fetchModel(name, options)` gives the loader's warnings and progress, and the hashes of the tokenizer and of
# the weights that it hands over, or its error; `abortAt` ends it after so many bytes. `flip`, `cut`, `blank`
# and `change` damage what is stored of a file.
GUEST = """
  const { storage } = (globalThis.client = await import("./web/client.js")).SLM2;
  const { PROTOCOL_VERSION } = await import("./worker/protocol.js");
  const { scriptUrl } = await import("./web/trusted.js");
  globalThis.storage = storage;
  // WebKit under automation has its caches in memory, and only as long as somebody has them open.
  globalThis.held = await caches.open("slm2-models").catch(() => null);
  const hex = (digest) => Array.from(new Uint8Array(digest), (b) => b.toString(16).padStart(2, "0")).join("");
  const hash = async (view) => hex(await crypto.subtle.digest("SHA-256", new Uint8Array(view)));
  globalThis.fetchModel = async (model, { abortAt = Infinity } = {}) => {
    const { version } = await (await fetch("site.json", { cache: "no-store" })).json();
    const name = `slm2 loader ${Math.random()}`;
    const loader = new Worker(scriptUrl("worker/loader.js"), { type: "module", name });
    const { port1, port2 } = new MessageChannel();
    const warnings = [];
    const progress = [];
    try {
      return await new Promise((resolve, reject) => {
        loader.onerror = (event) => reject(new Error(event.message));
        loader.onmessage = ({ data }) => {
          const { type, code, message, detail } = data;
          if (type === "warning") warnings.push({ code, message, ...detail });
          if (type === "progress") {
            progress.push([data.done, data.cached]);
            if (data.done >= abortAt) resolve({ warnings, progress, aborted: data.done });
          }
          if (type === "error") resolve({ warnings, progress, code, message, detail });
        };
        port1.onmessage = async ({ data }) => {
          // What is shared is read here; what is not was transferred.
          const hashes = [await hash(data.tokenizer), await hash(data.weights)];
          await idle();
          resolve({ warnings, progress, hashes, stats: data.stats });
        };
        const shared = typeof SharedArrayBuffer === "function";
        const own = { version: PROTOCOL_VERSION, site: version, root: document.baseURI };
        loader.postMessage({ type: "load", ...own, model, shared, port: port2 }, [port2]);
        port1.postMessage({ type: "want" });
      });
    } finally {
      loader.terminate();
    }
  };
  // The loader writes down what is stored when it has handed the model over: until nothing moves any more.
  const idle = globalThis.idle = async () => {
    for (let quiet = 0; quiet < 10; quiet++) {
      await new Promise((resolve) => setTimeout(resolve, 25));
      const { held, pending } = await navigator.locks.query();
      if ([...held, ...pending].some((lock) => lock.name.startsWith("slm2 store"))) quiet = 0;
    }
  };
  const change = async (sha256, edit) => {
    const cache = await caches.open("slm2-models");
    const key = (await cache.keys()).find((request) => request.url.includes(`/sha256/${sha256}/`));
    const bytes = edit(new Uint8Array(await (await cache.match(key)).arrayBuffer()));
    await cache.delete(key);
    await cache.put(key.url.replace(/-\\d+$/, `-${bytes.length}`), new Response(bytes));
  };
  globalThis.change = change;
  globalThis.flip = (sha256) => change(sha256, (bytes) => ((bytes[bytes.length >> 1] ^= 1), bytes));
  globalThis.cut = (sha256, length) => change(sha256, (bytes) => bytes.slice(0, length));
  globalThis.blank = (sha256, from) => change(sha256, (bytes) => bytes.fill(0, from));
"""

# Takes storage away from the page and its workers: the browsers that have none.
WITHOUT = {
    "cache": "",
    "memory": """
      CacheStorage.prototype.open = async () => { throw new DOMException("denied", "SecurityError"); };
    """,
}


def open_storage_page(context: BrowserContext, url: str, kind: str = "cache") -> Page:
    """An empty page of the site's origin with GUEST, where storage is of this kind."""
    isolated = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}
    context.route(
        "**/guest.html",
        lambda route: route.fulfill(content_type="text/html", headers=isolated, body="<!doctype html>"),
    )
    if WITHOUT[kind]:
        context.add_init_script(WITHOUT[kind])

        def poorer(route: Any) -> None:
            response = route.fetch()
            route.fulfill(response=response, body=f"{WITHOUT[kind]}\n{response.text()}")

        context.route("**/worker/loader.js", poorer)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{url}guest.html")
    page.evaluate(f"async () => {{ {GUEST} }}")
    return page


def split_weights(model: Path, n_shards: int) -> list[dict[str, Any]]:
    """Makes a packed model's only shard several; gives the manifest's files, the tokenizer first."""
    manifest = json.loads((model / "manifest.json").read_bytes())
    (only,) = manifest["weights"]["shards"]
    data = (model / only["file"]).read_bytes()
    (model / only["file"]).unlink()
    step = -(-len(data) // n_shards)
    shards: list[dict[str, Any]] = []
    for i in range(n_shards):
        part = data[i * step : (i + 1) * step]
        sha256 = hashlib.sha256(part).hexdigest()
        shards.append({"file": f"weights-{i:02}.{sha256[:8]}.bin", "bytes": len(part), "sha256": sha256})
        (model / shards[-1]["file"]).write_bytes(part)
    manifest["weights"]["shards"] = shards
    (model / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return [manifest["tokenizer"], *shards]


def copy_model(model: Path, to: Path) -> None:
    """The same model under another name."""
    shutil.copytree(model, to)
