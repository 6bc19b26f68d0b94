// Models: the picker. Which models this site has, what each weighs, whose terms it has, what it needs; from site.json and
// the models' manifests, which are compared with their hashes.

import { AssetError, SLM2 } from "./client.js";
import { button, byId, make, megabytes } from "./dom.js";
import { errorCard } from "./errors.js";
import { fetchSite } from "../worker/site.js";

/** @typedef {{name: string, title: string, license: string, download_bytes: number, weights_bytes: number,
 *   cache_bytes: number, positions: number, family: string}} Offer */

const ROOT = new URL("../", import.meta.url);
// The context that the page loads a model with (docs/client.md).
const POSITIONS = 2048;

export class ModelPicker {
  #dialog = byId("models", HTMLDialogElement);
  #list = byId("model-list", HTMLElement);
  #errors = byId("models-error", HTMLElement);
  #current;
  #use;

  /** @param {() => string | null} current name of the model that runs @param {(name: string) => void} use */
  constructor(current, use) {
    this.#current = current;
    this.#use = use;
    byId("open-models", HTMLButtonElement).addEventListener("click", () => this.open());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  open() {
    if (!this.#dialog.open) this.#dialog.showModal();
    void this.#show();
  }

  async #show() {
    this.#errors.replaceChildren();
    try {
      const stored = new Map((await SLM2.storage.list().catch(() => [])).map((model) => [model.name, model]));
      const site = await fetchSite(ROOT);
      const settled = await Promise.allSettled(site.models.map((name) => offer(name, site)));
      const items = settled.map((each, i) => {
        const name = site.models[i];
        if (each.status === "fulfilled") return this.#item(each.value, stored.get(name)?.complete === true);
        this.#errors.append(errorCard(each.reason, [button("Try again", () => void this.#show())]));
        return this.#unknown(name, stored.get(name)?.title ?? name);
      });
      this.#list.replaceChildren(...items);
    } catch (error) {
      this.#errors.replaceChildren(errorCard(error, [button("Try again", () => void this.#show())]));
    }
  }

  /** @param {Offer} model @param {boolean} stored */
  #item(model, stored) {
    const fetched = stored ? "stored in this browser already" : "fetched once, then stored in this browser";
    const facts = [
      ["Size", `${megabytes(model.download_bytes)} MB, ${fetched}`],
      ["Licence", model.license],
      [
        "Needs",
        `${megabytes(model.weights_bytes)} MB of memory for weights and ${megabytes(model.cache_bytes)} MB for a context of ` +
          `${model.positions} tokens, beside Python’s own; WebGPU where there is one, else WebAssembly with SIMD`,
      ],
      ["Template", model.family],
    ];
    const list = facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)));
    return make("li", { class: "model" }, this.#head(model.name, model.title), make("dl", {}, ...list));
  }

  /** @param {string} name @param {string} title */
  #unknown(name, title) {
    return make("li", { class: "model" }, this.#head(name, title));
  }

  /** @param {string} name @param {string} title */
  #head(name, title) {
    const use = button("Use", () => {
      this.#dialog.close();
      this.#use(name);
    });
    use.setAttribute("aria-label", `Use ${title}`);
    const isCurrent = name === this.#current();
    const right = isCurrent ? make("span", { class: "in-use" }, "in use") : use;
    return make("div", { class: "head" }, make("h3", {}, title, " ", make("code", {}, name)), right);
  }
}

/** What a model's manifest says of it.
 *
 * Throws AssetError `asset.unreachable`, `asset.hash`.
 * @param {string} name @param {import("../worker/site.js").Site} site @returns {Promise<Offer>} */
async function offer(name, site) {
  const path = `models/${name}/manifest.json`;
  const url = new URL(path, ROOT);
  /** @type {ArrayBuffer} */
  let bytes;
  try {
    const response = await fetch(url, { cache: "no-cache" });
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    bytes = await response.arrayBuffer();
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new AssetError("asset.unreachable", `${url}: ${reason}`, { url: url.href, reason });
  }
  const found = hex(await crypto.subtle.digest("SHA-256", bytes));
  const allowed = site.files[path]?.sha256;
  if (found !== allowed) {
    throw new AssetError("asset.hash", `${path}: found sha256 ${found}; allowed: ${allowed}`, { path, found, allowed });
  }
  const { title, license, config, tokenizer, template, weights } = JSON.parse(new TextDecoder().decode(bytes));
  const positions = Math.min(POSITIONS, config.max_seq_len);
  return {
    name,
    title,
    license,
    download_bytes: bytes.byteLength + tokenizer.bytes + weights.bytes,
    weights_bytes: weights.bytes,
    cache_bytes: cacheBytes(config, positions),
    positions,
    family: template?.family ?? "none of its own",
  };
}

/** The KV cache: int8 keys and values, and a float32 scale for each 32 of them (docs/forward.md).
 * @param {Record<string, number>} config @param {number} positions */
function cacheBytes({ n_layers, n_kv_heads, head_dim }, positions) {
  const values = 2 * n_layers * n_kv_heads * head_dim * positions;
  return values + (values / 32) * 4;
}

/** @param {ArrayBuffer} digest */
const hex = (digest) => Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
