// The parity page: runs the suite in the visitor's browser, shows how far it is and what it came to, and offers the
// certificate. Its address may say what to run: parity.html?run&size=quick&executor=wasm&stages=tokenizer,forward.
// `slm2Parity` is for who drives the page: how far it is, the cell, single records.

import { byId, download, make, megabytes, seconds } from "./dom.js";
import { errorCard } from "./errors.js";
import { browserName, certificateOf, expectedSum, facts, openSuite, Outputs, runCell } from "./parity-suite.js";
import { Cancelled, PARITY_SIZES } from "./client.js";
import { errorFrom } from "../worker/protocol.js";

/** @typedef {import("./parity-suite.js").Suite} Suite */
/** @typedef {import("./parity-suite.js").StageRun} StageRun */
/** @typedef {import("./parity-suite.js").Cell} Cell */
/** @typedef {import("./parity-suite.js").CellExecutor} CellExecutor */
/** @typedef {import("./client.js").ParitySize} Size */
/** @typedef {import("./client.js").Progress} LoadProgress */
/** @typedef {{item: HTMLElement, bar: HTMLProgressElement, figure: HTMLElement, verdict: HTMLElement,
 *   detail: HTMLElement}} Line */

/** What a stage is about; a stage of another model has the same words. @type {Record<string, string>} */
const ABOUT = {
  tokenizer: "text to tokens and back",
  template: "conversations to prompts",
  prompt: "prompts that fit a budget",
  sampling: "logits to a drawn token",
  stream: "tokens to text, as they come",
  forward: "the model’s logits, bit for bit",
  chat: "whole replies, greedy and sampled",
  boundary: "broken text, stops, reloads, wrong messages",
  regex: "the split, by another library",
};
const SIGNS = { equal: "✓ equal", differs: "≠ differs", failed: "! failed" };
const MAX_SHOWN = 1200;

const params = new URLSearchParams(location.search);
const form = byId("form", HTMLFormElement);
const start = byId("start", HTMLButtonElement);
const cancel = byId("cancel", HTMLButtonElement);
const list = byId("stages", HTMLOListElement);

/** @type {Suite | null} */
let suite = null;
/** @type {AbortController | null} */
let running = null;
/** @type {Map<string, Line>} */
let lines = new Map();
/** @type {Cell | null} */
let cell = null;
/** @type {any} */
let certificate = null;
/** Whose outputs were asked for last. @type {{name: string, executor: CellExecutor, outputs: Outputs} | null} */
let asked = null;
/** For who drives the page. @type {{state: string, stage: string, done: number, total: number, ended: number,
 *   error: {code: string, message: string} | null}} */
const status = { state: "loading", stage: "", done: 0, total: 0, ended: 0, error: null };

/** @param {"loading" | "ready" | "busy" | "error"} state @param {string} text */
function setState(state, text) {
  document.documentElement.dataset.state = state;
  const runs = byId("runs", HTMLElement);
  runs.textContent = runs.title = text;
}

/** Heard by who listens instead of looking: beginnings and ends of stages, no more. @param {string} text */
const say = (text) => (byId("status", HTMLElement).textContent = text);

// --- before a run ------------------------------------------------------------------------------------------

async function open() {
  try {
    const [opened, here] = await Promise.all([openSuite(), facts()]);
    suite = opened;
    showChoices(here);
    showStages(opened.names);
    const { name, version } = browserName(navigator.userAgent);
    setState("ready", `${name} ${version}${here.isolated ? ", isolated" : ", not isolated"}`);
    status.state = "ready";
    start.disabled = false;
    form.addEventListener("change", showCounts);
    showCounts();
    if (params.has("run")) await run();
  } catch (error) {
    fail(error);
    setState("error", "no suite");
  }
}

/** @param {Awaited<ReturnType<typeof facts>>} here */
function showChoices(here) {
  choose("size", params.get("size"));
  choose("executor", params.get("executor"));
  radio("executor", "webgpu").disabled = !here.webgpu;
  byId("webgpu-figure", HTMLElement).textContent = here.adapter ?? "not in this browser";
  byId("wasm-figure", HTMLElement).textContent = here.shared
    ? `shared memory, ${here.threads ?? "all"} threads`
    : "no shared memory, one thread";
  const notes = [];
  if (here.software) notes.push("This adapter is a program, not a GPU: the stages that compute run in size quick on it.");
  if (!here.isolated) notes.push("This page is not cross-origin isolated: one thread, as on any plain file server.");
  if (!here.webgpu) notes.push(`WebGPU: ${here.webgpu_absence}.`);
  byId("executor-note", HTMLElement).textContent = notes.join(" ");
}

/** @param {string} name @param {string} value */
function radio(name, value) {
  const found = [...form.querySelectorAll("input")].find((input) => input.name === name && input.value === value);
  if (!found) throw errorFrom("input.params", `${name}: found ${value.slice(0, 80)}`, { field: name });
  return found;
}

/** @param {string} name @param {string | null} value */
function choose(name, value) {
  if (value !== null) radio(name, value).checked = true;
}

/** @param {string} name */
const chosen = (name) => String(new FormData(form).get(name));

/** How many records each size has. */
function showCounts() {
  if (!suite) return;
  for (const size of PARITY_SIZES) {
    const total = stageNames().reduce((sum, name) => sum + (expectedSum(/** @type {Suite} */ (suite), name, size)?.vectors ?? 0), 0);
    byId(`${size}-figure`, HTMLElement).textContent = `${total.toLocaleString("en")} records`;
  }
}

/** The stages that are run: those of the address, else all. @returns {string[]} */
function stageNames() {
  const wanted = params.get("stages");
  return wanted === null ? (suite?.names ?? []) : wanted.split(",");
}

/** @param {string[]} names */
function showStages(names) {
  const wanted = stageNames();
  lines = new Map();
  list.replaceChildren();
  for (const name of names.filter((each) => wanted.includes(each))) {
    const [stage, ...model] = name.split(".");
    const about = `${ABOUT[stage] ?? ""}${model.length > 0 ? ` (${model.join(".")})` : ""}`;
    const title = make("span", { class: "name" }, name, make("small", {}, about));
    const bar = make("progress", { max: "1", value: "0", "aria-label": name });
    const figure = make("span", { class: "figure" });
    const verdict = make("span", { class: "verdict" }, "");
    const detail = make("div", { class: "detail" });
    const item = make("li", { "data-stage": name, "data-state": "waiting" }, title, bar, figure, verdict, detail);
    lines.set(name, { item, bar, figure, verdict, detail });
    list.append(item);
  }
}

// --- a run -------------------------------------------------------------------------------------------------

async function run() {
  if (!suite || running) return;
  running = new AbortController();
  const size = /** @type {Size} */ (chosen("size"));
  const executor = /** @type {CellExecutor} */ (chosen("executor"));
  const stages = stageNames();
  const name = params.get("browser");
  const browser = name === null ? undefined : { name, version: params.get("browser_version") ?? "" };
  [cell, certificate] = [null, null];
  Object.assign(status, { state: "running", stage: "", done: 0, total: 0, ended: 0, error: null });
  byId("verdict", HTMLElement).hidden = true;
  byId("error", HTMLElement).replaceChildren();
  showStages(suite.names);
  setBusy(true);
  setState("busy", `running, ${executor}, ${size}`);
  say("The suite is running.");
  try {
    cell = await runCell(suite, {
      ...{ size, executor, stages, browser, signal: running.signal },
      onLoad: showLoad,
      onProgress: showProgress,
      onStage: showStage,
    });
    certificate = certificateOf(suite, size, cell);
    status.state = "done";
    showVerdict(cell);
    setState(cell.verdict === "equal" ? "ready" : "error", `${cell.verdict}, ${executor}, ${size}`);
  } catch (error) {
    const isCancelled = error instanceof Cancelled;
    stopLines();
    fail(error);
    status.state = isCancelled ? "cancelled" : "failed";
    setState(isCancelled ? "ready" : "error", isCancelled ? "cancelled" : "failed");
    say(isCancelled ? "Cancelled." : "The suite failed.");
  } finally {
    running = null;
    setBusy(false);
    byId("load", HTMLElement).hidden = true;
  }
}

/** @param {boolean} isBusy */
function setBusy(isBusy) {
  const hadFocus = [start, cancel].includes(/** @type {any} */ (document.activeElement));
  start.hidden = isBusy;
  cancel.hidden = !isBusy;
  cancel.disabled = false;
  for (const set of form.querySelectorAll("fieldset")) set.disabled = isBusy;
  if (hadFocus) (isBusy ? cancel : start).focus();
}

/** @param {string} model @param {LoadProgress} progress */
function showLoad(model, { stage, done, total, unit }) {
  const bar = byId("load-bar", HTMLProgressElement);
  byId("load", HTMLElement).hidden = stage === "ready";
  byId("load-name", HTMLElement).textContent = `Loading ${model}: ${stage.replace("_", " ")}`;
  if (total > 1) [bar.max, bar.value] = [total, done];
  else bar.removeAttribute("value");
  byId("load-figure", HTMLElement).textContent = unit === "bytes" ? `${megabytes(done)} of ${megabytes(total)} MB` : "";
  Object.assign(status, { stage: `loading ${model}`, done, total });
}

/** @param {string} name @param {number} done @param {number} total */
function showProgress(name, done, total) {
  byId("load", HTMLElement).hidden = true;
  Object.assign(status, { stage: name, done, total });
  const line = lines.get(name);
  if (!line) return;
  if (line.item.dataset.state === "waiting") {
    line.item.dataset.state = "running";
    line.item.setAttribute("aria-current", "step");
  }
  [line.bar.max, line.bar.value] = [total, done];
  line.figure.textContent = `${done.toLocaleString("en")} of ${total.toLocaleString("en")}`;
}

/** @param {StageRun} stage */
function showStage(stage) {
  status.ended += 1;
  const line = lines.get(stage.name);
  if (!line) return;
  line.item.dataset.state = stage.verdict;
  line.item.removeAttribute("aria-current");
  [line.bar.max, line.bar.value] = [1, 1];
  line.figure.textContent = `${stage.vectors.toLocaleString("en")} · ${seconds(stage.seconds * 1000)}`;
  line.verdict.textContent = SIGNS[stage.verdict];
  if (stage.failure) line.detail.append(make("p", {}, make("code", {}, stage.failure.code), ` ${stage.failure.message}`));
  if (stage.difference) line.detail.append(differenceList(stage.difference));
  else if (stage.verdict === "differs") line.detail.append(make("p", {}, "Which record differs first is not known."));
  say(`${stage.name}: ${stage.verdict}.`);
}

/** @param {import("./parity-suite.js").Difference} difference */
function differenceList({ index, input, expected, found }) {
  const parts = [
    ["First record that differs", String(index)],
    ["Input", shown(input)],
    ["Baseline", shown(expected)],
    ["Found here", shown(found)],
  ];
  const rows = parts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  return make("dl", { class: "difference" }, ...rows);
}

/** A JSON value, in short. @param {any} value */
function shown(value) {
  const text = JSON.stringify(value);
  return text.length <= MAX_SHOWN ? text : `${text.slice(0, MAX_SHOWN)}… (${text.length} characters; the certificate has all)`;
}

/** Whatever still ran has ended without a verdict. */
function stopLines() {
  for (const { item, figure } of lines.values()) {
    if (item.dataset.state !== "running") continue;
    item.dataset.state = "stopped";
    item.removeAttribute("aria-current");
    figure.textContent += ", stopped";
  }
}

/** @param {Cell} done */
function showVerdict(done) {
  const vectors = done.stages.reduce((sum, { vectors: n }) => sum + n, 0).toLocaleString("en");
  const wrong = done.stages.filter(({ verdict }) => verdict !== "equal").map(({ name }) => name);
  const title = byId("verdict-title", HTMLElement);
  const section = byId("verdict", HTMLElement);
  section.dataset.verdict = done.verdict;
  title.textContent = { equal: "✓ The same bits.", differs: "≠ Not the same bits.", failed: "! Not finished." }[done.verdict] ?? "";
  const time = `${vectors} records in ${done.stages.length} stages, ${seconds(done.seconds * 1000)}.`;
  const outcome = wrong.length === 0 ? "Every digest is the baseline’s." : `Look at: ${wrong.join(", ")}.`;
  byId("verdict-text", HTMLElement).textContent = `${time} ${done.failure ? done.failure.message : outcome}`;
  byId("verdict-notes", HTMLElement).replaceChildren(...done.notes.map((note) => make("li", {}, note)));
  section.hidden = false;
  say(`${title.textContent} ${time}`);
}

/** @param {unknown} error */
function fail(error) {
  const known = /** @type {any} */ (error);
  status.state = "failed";
  status.error = { code: String(known?.code ?? "page"), message: String(known?.message ?? error) };
  byId("error", HTMLElement).replaceChildren(errorCard(error, []));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void run();
});
cancel.addEventListener("click", () => {
  cancel.disabled = true;
  running?.abort();
});
byId("download", HTMLButtonElement).addEventListener("click", () => {
  if (certificate) download("parity-certificate.json", `${JSON.stringify(certificate, null, 1)}\n`);
});

/** @type {any} */ (globalThis).slm2Parity = {
  facts,
  status: () => ({ ...status }),
  names: () => suite?.names ?? [],
  cell: () => cell,
  certificate: () => certificate,
  /** What this browser makes of an input; the model stays until another stage is asked for.
   * @param {{executor: CellExecutor, name: string, input: any}} wanted */
  async output({ executor, name, input }) {
    if (asked?.name !== name || asked.executor !== executor) {
      await asked?.outputs.end();
      asked = { name, executor, outputs: new Outputs(/** @type {Suite} */ (suite), name, executor) };
    }
    return asked.outputs.of(input);
  },
};

void open();
