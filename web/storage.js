// The storage page: which models this browser keeps, how much room they take, and their removal. Everything it knows
// is of SLM2.storage, as another page would know it.

import { SLM2 } from "./client.js";
import { button, byId, count, make, megabytes } from "./dom.js";
import { errorCard } from "./errors.js";

/** @typedef {import("./stored.js").StoredModel} StoredModel */
/** @typedef {import("./stored.js").StoredFile} StoredFile */
/** @typedef {import("./stored.js").Estimate} Estimate */

const ROOT = new URL("../models/", import.meta.url).href;
const KINDS = {
  cache: "in the browser’s cache storage",
  memory: "nowhere: this browser gives the page no storage",
};

const list = byId("models", HTMLElement);
const errors = byId("error", HTMLElement);
const persist = byId("persist", HTMLButtonElement);
const removeAll = byId("remove-all", HTMLButtonElement);
const dialog = byId("confirm", HTMLDialogElement);

/** @param {number} bytes */
const size = (bytes) =>
  bytes < 1e5
    ? `${(bytes / 1e3).toFixed(bytes < 1e3 ? 1 : 0)} KB`
    : bytes < 1e9
      ? `${megabytes(bytes)} MB`
      : `${(bytes / 1e9).toFixed(1)} GB`;

/** Says something to who cannot see the page. @param {string} text */
const say = (text) => (byId("status", HTMLElement).textContent = text);

/** Shows what is stored now. */
async function show() {
  try {
    const [models, estimate] = await Promise.all([SLM2.storage.list(), SLM2.storage.estimate()]);
    showRoom(estimate);
    list.replaceChildren(...models.map(card));
    byId("empty", HTMLElement).hidden = models.length > 0;
    removeAll.hidden = models.length < 2;
    setState("ready", `${count(models.length, "model")}, ${size(estimate.models_bytes)}`);
  } catch (error) {
    fail(error);
    setState("error", "the storage can’t be read");
  }
}

/** @param {"ready" | "error"} state @param {string} text */
function setState(state, text) {
  document.documentElement.dataset.state = state;
  byId("runs", HTMLElement).textContent = text;
}

/** @param {unknown} error */
const fail = (error) => errors.replaceChildren(errorCard(error, [button("Look again", () => void again())]));

async function again() {
  errors.replaceChildren();
  await show();
}

/** @param {Estimate} estimate */
function showRoom({ kind, usage, quota, models_bytes, persisted }) {
  const meter = byId("room-meter", HTMLMeterElement);
  meter.hidden = usage === null || quota === null;
  meter.max = quota ?? 1;
  meter.value = usage ?? 0;
  const figures = [`Models: ${size(models_bytes)}, ${KINDS[kind]}.`];
  if (usage !== null && quota !== null) {
    figures.push(`In use: ${size(usage)} of about ${size(quota)} that this site may have.`);
  }
  byId("room-figures", HTMLElement).textContent = figures.join(" ");
  byId("persisted", HTMLElement).textContent = persisted
    ? "The browser keeps this until you remove it."
    : "The browser may drop this when space runs short; it is then fetched again.";
  persist.hidden = persisted || models_bytes === 0 || kind === "memory";
}

/** @param {StoredModel} model */
function card(model) {
  const { name, title, url, bytes, stored_bytes, complete, files } = model;
  const remove = button("Remove", () => void ask(name, title, stored_bytes));
  remove.setAttribute("aria-label", `Remove ${title} (${name})`);
  const state = complete
    ? make("p", { class: "aside" }, `${name} · ${size(bytes)}, complete; ${verifiedText(files)}`)
    : make("p", { class: "aside unfinished" }, `${name} · ${size(stored_bytes)} of ${size(bytes)}: not complete`);
  const elsewhere = url.startsWith(ROOT) ? [] : [make("p", { class: "aside" }, `Stored by ${url}`)];
  return make(
    "li",
    { class: "model" },
    make("header", {}, make("div", {}, make("h3", {}, title), state, ...elsewhere), remove),
    make("details", {}, make("summary", {}, count(files.length, "file")), table(title, files)),
  );
}

/** @param {StoredFile[]} files */
function verifiedText(files) {
  const times = files.map((file) => file.verified);
  if (times.includes(null)) return "not yet verified";
  return `verified ${when(times.sort()[0] ?? "")}`;
}

/** @param {string} title @param {StoredFile[]} files */
function table(title, files) {
  const head = ["File", "Size", "Stored", "Verified"].map((text, i) =>
    make("th", { scope: "col", class: i === 1 ? "number" : "" }, text),
  );
  const rows = files.map(({ name, bytes, stored, stored_bytes, verified }) =>
    make(
      "tr",
      {},
      make("td", {}, name),
      make("td", { class: "number" }, size(bytes)),
      make("td", {}, stored ? "yes" : stored_bytes > 0 ? `${size(stored_bytes)} of it` : "no"),
      make("td", {}, verified === null ? "–" : when(verified)),
    ),
  );
  const caption = make("caption", { class: "unseen" }, `Files of ${title}`);
  const element = make("table", {}, caption, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  // A region that can be scrolled is one that the keyboard must reach.
  return make("div", { class: "files", role: "region", tabindex: "0", "aria-label": `Files of ${title}` }, element);
}

/** @param {string} iso */
const when = (iso) => new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });

/** Asks, and removes. @param {string} name as `remove` takes it @param {string} title @param {number} bytes */
async function ask(name, title, bytes) {
  byId("confirm-title", HTMLElement).textContent = `Remove ${title}?`;
  byId("confirm-text", HTMLElement).textContent =
    `${size(bytes)} are removed from this browser. The next chat with it fetches them again.`;
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "remove") return;
  try {
    errors.replaceChildren();
    await SLM2.storage.remove(name);
    say(`${title} removed.`);
  } catch (error) {
    fail(error);
  }
  await show();
  byId("models-title", HTMLElement).focus();
}

persist.addEventListener("click", async () => {
  const kept = await SLM2.storage.persist().catch(() => false);
  say(kept ? "The browser keeps the models." : "The browser did not agree to keep the models.");
  await show();
});
removeAll.addEventListener("click", async () => {
  const { models_bytes } = await SLM2.storage.estimate();
  await ask("*", "all models", models_bytes);
});
// Another tab may have stored or removed something meanwhile.
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") void show();
});

void show();
