// The demo page: a conversation on top of client.js. It uses nothing that another page could not.
//
//     loading ----> ready <----> busy          data-state of <html>
//        ^ |          |
//  again | v          | the worker died
//       error <-------+
//
// A message sent while the model loads waits for it. A turn (turn.js) is one question and its reply; it is
// part of the conversation when the reply has text, and marked as dropped when it failed or was stopped first.

import { SLM2, Slm2Error } from "./client.js";
import { button, byId, seconds } from "./dom.js";
import { code, errorCard } from "./errors.js";
import { Settings } from "./settings.js";
import { StageTable } from "./stages.js";
import { Turn } from "./turn.js";

/** @typedef {Awaited<ReturnType<typeof SLM2.load>>} Model */
/** @typedef {"loading" | "ready" | "busy" | "error"} State */

/** @type {Record<string, string>} */
const EXECUTOR_NAMES = { webgpu: "WebGPU", wasm: "WebAssembly", reference: "reference (slow)" };
// How near to the end still counts as reading along.
const PINNED_PX = 48;

const page = byId("page", HTMLElement);
const log = byId("log", HTMLElement);
const welcome = byId("welcome", HTMLElement);
const loading = byId("loading", HTMLDetailsElement);
const notes = byId("notes", HTMLElement);
const loadError = byId("load-error", HTMLElement);
const input = byId("input", HTMLTextAreaElement);
const send = byId("send", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const latest = byId("latest", HTMLButtonElement);
const settings = new Settings();
const stages = new StageTable(byId("stages", HTMLElement));

/** @type {Model | null} */
let model = null;
/** @type {Turn[]} */
let turns = [];
/** The turn that is answered now, or waits for the model. @type {Turn | null} */
let current = null;
/** @type {ReturnType<Model["chat"]> | null} */
let chat = null;

/** @param {State} state */
function setState(state) {
  document.documentElement.dataset.state = state;
  const stoppable = current !== null;
  stop.hidden = !stoppable;
  send.hidden = stoppable;
}

const state = () => document.documentElement.dataset.state;

/** Says something to who cannot see the page. @param {string} text */
const say = (text) => (byId("status", HTMLElement).textContent = text);

// --- the model -------------------------------------------------------------------------------------------

async function load() {
  const query = new URLSearchParams(location.search);
  const executor = query.get("executor");
  model?.dispose();
  model = null;
  stages.reset();
  notes.textContent = "";
  loadError.replaceChildren();
  loading.open = true;
  byId("loading-title", HTMLElement).textContent = "Getting the model ready";
  byId("runs", HTMLElement).textContent = "loading";
  setState("loading");
  try {
    model = await SLM2.load({
      ...(query.has("model") && { model: query.get("model") ?? "" }),
      ...(executor !== null && { executor: /** @type {any} */ (executor) }),
      onProgress(progress) {
        const begun = stages.show(progress);
        if (begun) say(`Loading: ${begun}`);
      },
      onWarning(warning) {
        notes.textContent += `${warning.meaning} ${warning.remedy} (${warning.code}: ${warning.message})\n`;
      },
    });
  } catch (error) {
    stages.stop();
    byId("loading-title", HTMLElement).textContent = "The model is not ready";
    byId("runs", HTMLElement).textContent = "no model";
    loadError.replaceChildren(errorCard(error, loadActions(error)));
    loadError.scrollIntoView({ block: "nearest" });
    setState("error");
    current?.note("waits for the model");
    return;
  }
  showModel(model.info);
  setState("ready");
  void keepOffline();
  if (current) void answer(current);
}

/** @param {Record<string, any>} info */
function showModel({ model, executor, adapter, defaults, timings, memory }) {
  const runs = [model.title, EXECUTOR_NAMES[executor] ?? executor, adapter];
  byId("runs", HTMLElement).textContent = runs.filter(Boolean).join(" · ");
  byId("runs", HTMLElement).title = runs.filter(Boolean).join(" · ");
  stages.finish(timings);
  byId("loading-title", HTMLElement).textContent = `Ready in ${seconds(timings.total_ms)}`;
  const shared = memory.weights_shared ? "shared memory" : "memory that is not shared: no cross-origin isolation";
  const parts = [memory.python_heap_bytes, memory.device_cache_bytes, memory.device_work_bytes];
  const [total, heap, cache, work] = [parts.reduce((a, b) => a + b, 0), ...parts].map((b) => (b / 1e6).toFixed(0));
  notes.textContent +=
    `${(memory.weights_bytes / 1e6).toFixed(0)} MB of weights in ${shared}; beside them ${total} MB: ` +
    `Python’s heap with the vocabulary ${heap}, the conversation’s cache ${cache}, the kernels’ buffers ${work}.\n`;
  if (turns.length > 0) loading.open = false;
  settings.showDefaults({ ...defaults, system: model.default_system });
  say("The model is ready.");
}

/** @param {unknown} error */
function loadActions(error) {
  if (code(error) === "protocol.version") return [button("Reload the page", () => location.reload())];
  if (code(error).startsWith("input.")) {
    return [button("Use the model of this site", () => (location.search = ""))];
  }
  return [button("Try again", () => void load())];
}

/** After a first visit, the page opens without a network. */
async function keepOffline() {
  if (!("serviceWorker" in navigator)) return;
  try {
    const site = await (await fetch("site.json", { cache: "no-cache" })).json();
    await navigator.serviceWorker.register(`sw.js?version=${site.version.slice(0, 16)}`);
    await navigator.serviceWorker.ready;
    notes.textContent += "This page is kept for use without a network.\n";
  } catch (error) {
    console.warn("not kept for use without a network:", error);
  }
}

// --- the conversation ------------------------------------------------------------------------------------

/** @param {string} question */
function ask(question) {
  if (current || question.trim() === "") return;
  const wrong = settings.firstWrong();
  if (wrong) {
    settings.open(wrong);
    return;
  }
  current = new Turn(question);
  turns.push(current);
  log.append(current.element);
  welcome.hidden = true;
  input.value = "";
  fitInput();
  input.focus();
  page.scrollTop = page.scrollHeight;
  if (model) void answer(current);
  else setState(state() === "error" ? "error" : "loading");
}

/** @param {Turn} turn */
async function answer(turn) {
  current = turn;
  loading.open = false;
  setState("busy");
  say("The model reads.");
  try {
    if (!model) throw new Error("no model");
    turn.begin(model.info.model.title);
    follow();
    const before = turns.slice(0, turns.indexOf(turn)).flatMap((each) => each.messages());
    const messages = [...settings.system(), ...before, { role: "user", content: turn.question }];
    chat = model.chat(messages, {
      ...settings.params(),
      onPrefill: (done, total) => turn.prefill(done, total),
    });
    for await (const delta of chat) {
      const pinned = isPinned();
      turn.append(delta, chat.nTokens);
      if (pinned) follow();
      else latest.hidden = false;
    }
    const pinned = isPinned();
    turn.end(await chat.result);
    if (pinned) follow();
    say("");
    byId("announcer", HTMLElement).textContent = turn.answer ?? "";
  } catch (error) {
    turn.fail(error, turnActions(error, turn));
    follow();
  }
  chat = null;
  current = null;
  latest.hidden = true;
  setState(model?.failure ? "error" : "ready");
}

/** @param {unknown} error @param {Turn} turn */
function turnActions(error, turn) {
  const edit = button("Edit the message", () => {
    remove(turn);
    input.value = turn.question;
    fitInput();
    input.focus();
  });
  const again = button("Try again", () => {
    if (current) return;
    remove(turn);
    turns.push(turn);
    log.append(turn.element);
    current = turn;
    void load();
  });
  if (!(error instanceof Slm2Error)) return [button("Reload the page", () => location.reload())];
  if (error.code === "protocol.version") return [button("Reload the page", () => location.reload())];
  if (error.code === "input.budget") return [edit, button("New chat", () => void newChat())];
  if (error.code === "input.params") return [edit, button("Settings", () => settings.open())];
  return error.code.startsWith("input.") || error.code.startsWith("template.") ? [edit] : [again, edit];
}

/** Stops the reply; a message that still waits for the model goes back to where it was typed. */
function stopReply() {
  if (chat) {
    chat.cancel();
  } else if (current && state() !== "busy") {
    const turn = current;
    remove(turn);
    current = null;
    if (input.value === "") input.value = turn.question;
    fitInput();
    setState(state() === "error" ? "error" : "loading");
  }
  input.focus();
}

/** @param {Turn} turn */
function remove(turn) {
  turns = turns.filter((each) => each !== turn);
  turn.element.remove();
  welcome.hidden = turns.length > 0;
}

async function newChat() {
  if (chat) {
    chat.cancel();
    await chat.result.catch(() => {});
  } else if (current) {
    stopReply();
  }
  for (const turn of turns) turn.element.remove();
  turns = [];
  welcome.hidden = false;
  byId("announcer", HTMLElement).textContent = "";
  page.scrollTop = 0;
  input.focus();
}

// --- the window ------------------------------------------------------------------------------------------

const isPinned = () => page.scrollHeight - page.scrollTop - page.clientHeight < PINNED_PX;

/** Shows the newest text. */
function follow() {
  page.scrollTop = page.scrollHeight;
  latest.hidden = true;
}

/** The field is as high as its text, up to a limit that the style sets. */
function fitInput() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
}

byId("composer", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  ask(input.value);
});
input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask(input.value);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !settings.isOpen && !event.isComposing && current) stopReply();
});
stop.addEventListener("click", stopReply);
latest.addEventListener("click", follow);
page.addEventListener("scroll", () => {
  if (isPinned()) latest.hidden = true;
});
byId("new-chat", HTMLButtonElement).addEventListener("click", () => void newChat());
for (const example of byId("examples", HTMLElement).querySelectorAll("button")) {
  example.addEventListener("click", () => ask(example.textContent ?? ""));
}

void load();
