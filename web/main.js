// The demo page: a conversation on top of client.js. It uses nothing that another page could not.
//
//     loading ----> ready <----> busy          data-state of <html>
//        ^ |          |
//  again | v          | the worker died
//       error <-------+
//
// A message sent while the model loads waits for it. A turn (turn.js) is one question and its reply; it is
// part of the conversation when the reply has text, a call or a thought, and marked as dropped when it failed or was
// stopped first.

import { SLM2, Slm2Error } from "./client.js";
import { ContextMeter } from "./context.js";
import { Current } from "./conversations/current.js";
import { ConversationPanel } from "./conversations/panel.js";
import { openStore } from "./conversations/store.js";
import { button, byId, isComposing, seconds } from "./dom.js";
import { code, errorCard } from "./errors.js";
import { isolate } from "./isolation.js";
import { Keyboard } from "./keyboard.js";
import { ModelPicker } from "./models.js";
import { keepOffline } from "./offline.js";
import { Settings } from "./settings.js";
import { StageTable } from "./stages.js";
import { keepDraft, keptDraft } from "./tab.js";
import { difference, readTranscript, recordedRequest } from "./transcript.js";
import { Turn } from "./turn.js";

/** @typedef {Awaited<ReturnType<typeof SLM2.load | typeof SLM2.share>>} Model */
/** @typedef {"loading" | "ready" | "busy" | "error"} State */

/** @type {Record<string, string>} */
const EXECUTOR_NAMES = { webgpu: "WebGPU", wasm: "WebAssembly", reference: "reference (slow)" };
// How near to the end still counts as reading along.
const PINNED_PX = 48;
// Why the service worker that was asked for does not isolate this page.
const NOT_ISOLATED = {
  frame: "This page is in a frame, which can’t be isolated from here",
  unsupported: "The browser offers no service worker here, or no isolation",
  scope: "This page lies outside of the service worker’s folder",
  refused: "This browser does not isolate the page",
  failed: "The service worker that isolates the page failed",
};

const page = byId("page", HTMLElement);
const log = byId("log", HTMLElement);
const welcome = byId("welcome", HTMLElement);
const loading = byId("loading", HTMLDetailsElement);
const notes = byId("notes", HTMLElement);
const loadError = byId("load-error", HTMLElement);
const saveError = byId("save-error", HTMLElement);
const input = byId("input", HTMLTextAreaElement);
const send = byId("send", HTMLButtonElement);
const stop = byId("stop", HTMLButtonElement);
const latest = byId("latest", HTMLButtonElement);
const settings = new Settings();
const meter = new ContextMeter();
const stages = new StageTable(byId("stages", HTMLElement));

/** @type {Model | null} */
let model = null;
/** @type {Turn[]} */
let turns = [];
/** The turn that is answered now, or waits for the model. @type {Turn | null} */
let current = null;
/** @type {ReturnType<Model["chat"]> | null} */
let chat = null;
/** Ends with the reply that is under way. */
let answering = Promise.resolve();
/** Where the conversation is kept, once that is known. @type {Current | null} */
let saved = null;
/** @type {ConversationPanel | null} */
let panel = null;
/** What `current` goes on from, once the model is there. @type {import("./turn.js").Answered | null} */
let goesOnFrom = null;

/** @param {State} state */
function setState(state) {
  document.documentElement.dataset.state = state;
  const stoppable = current !== null;
  stop.hidden = !stoppable;
  send.hidden = stoppable;
}

const state = () => document.documentElement.dataset.state;

/** Adds a line to the notes on loading, once. @param {string} text */
function note(text) {
  const lines = (notes.textContent ?? "").split("\n");
  if (!lines.includes(text)) notes.textContent += `${text}\n`;
}

/** Says something to who cannot see the page. @param {string} text */
const say = (text) => (byId("status", HTMLElement).textContent = text);

// --- the model -------------------------------------------------------------------------------------------

let loadingNow = new AbortController();
/** @type {Promise<void>} */
let loads = Promise.resolve();

/** Loads the model that the address names; a load that is under way gives way to it. */
function load() {
  loadingNow.abort();
  notes.textContent = "";
  const { signal } = (loadingNow = new AbortController());
  loads = loads.catch(() => {}).then(() => (signal.aborted ? undefined : loadNow(signal)));
  return loads;
}

/** @param {AbortSignal} signal */
async function loadNow(signal) {
  const query = new URLSearchParams(location.search);
  const executor = query.get("executor");
  const old = model;
  model = null;
  stages.reset();
  loadError.replaceChildren();
  loading.open = true;
  byId("loading-title", HTMLElement).textContent = "Getting the model ready";
  byId("runs", HTMLElement).textContent = "loading";
  setState("loading");
  try {
    await old?.dispose(); // there may be no room for two
    // What is asked meanwhile outlives a reload, but is not sent.
    const { why, error } = await isolate({ beforeReload: () => keepDraft(current?.question ?? input.value) });
    if (why && why !== "off") note(NOT_ISOLATED[why] + (error ? ` (${error.code}: ${error.message})` : "") + ".");
    const loaded = await SLM2[settings.sharesModel ? "share" : "load"]({
      signal,
      ...(query.has("model") && { model: query.get("model") ?? "" }),
      ...(executor !== null && { executor: /** @type {any} */ (executor) }),
      onProgress(progress) {
        if (state() === "busy") return current?.note("waits for the model: the tab that had it is gone");
        if (state() !== "loading") return; // the same, and nobody waits
        const begun = stages.show(progress);
        if (begun) say(`Loading: ${begun}`);
      },
      onWarning(warning) {
        note(`${warning.meaning} ${warning.remedy} (${warning.code}: ${warning.message})`);
      },
    });
    if (signal.aborted) return void (await loaded.dispose());
    model = loaded;
  } catch (error) {
    if (signal.aborted) return; // another one follows
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
  void tryToKeepOffline(model.info.site);
  if (current) {
    const from = goesOnFrom;
    goesOnFrom = null;
    void answer(current, from);
  }
}

/** @param {Record<string, any>} info */
function showModel({ model, template, executor, adapter, fallback, defaults, timings, memory, sharing }) {
  const runs = [model.title, EXECUTOR_NAMES[executor] ?? executor, adapter].filter(Boolean).join(" · ");
  byId("runs", HTMLElement).textContent = runs;
  byId("runs", HTMLElement).title = runs;
  // The header shows as much of it as there is room for.
  note(`${runs}.`);
  if (fallback) note(`WebGPU was not used: ${fallback.message} (${fallback.code}).`);
  stages.finish(timings);
  if (sharing?.why === "silent") note("Another tab has the model but does not answer, so this one has loaded its own.");
  const elsewhere = sharing?.here === false;
  byId("loading-title", HTMLElement).textContent = elsewhere
    ? "Ready: another tab has loaded the model"
    : `Ready in ${seconds(timings.total_ms)}`;
  const unshared = crossOriginIsolated ? "this browser has no SharedArrayBuffer" : "no cross-origin isolation";
  const shared = memory.weights_shared ? "shared memory" : `memory that is not shared: ${unshared}`;
  const parts = [memory.python_heap_bytes, memory.device_cache_bytes, memory.device_work_bytes];
  const [total, heap, cache, work] = [parts.reduce((a, b) => a + b, 0), ...parts].map((b) => (b / 1e6).toFixed(0));
  note(
    `${(memory.weights_bytes / 1e6).toFixed(0)} MB of weights in ${shared}; beside them ${total} MB: ` +
      `Python’s heap with the vocabulary ${heap}, the conversation’s cache ${cache}, the kernels’ buffers ${work}.`,
  );
  if (turns.length > 0) loading.open = false;
  settings.showDefaults({ ...defaults, system: model.default_system }, template);
  say("The model is ready.");
}

/** @param {unknown} error */
function loadActions(error) {
  if (code(error) === "protocol.version") return [button("Reload the page", () => location.reload())];
  if (code(error) === "input.model") return [button("Use the model of this site", () => openWithout("model"))];
  if (code(error) === "input.params") return [button("Use the fastest that works", () => openWithout("executor"))];
  return [button("Try again", () => void load())];
}

/** Opens the page again without a part of its query. @param {string} name */
function openWithout(name) {
  const query = new URLSearchParams(location.search);
  query.delete(name);
  location.search = query.toString();
}

let askedToPersist = false;

/** Asks the browser not to drop the model when space runs short, once it has answered: who sees the question knows
 * what it is about. Nothing here depends on the answer. */
async function keepStorage() {
  if (askedToPersist) return;
  askedToPersist = true;
  await SLM2.storage.persist().catch((error) => console.warn("storage may be cleared:", error));
}

/** After a first visit, the page opens without a network. @param {string} version of this page */
async function tryToKeepOffline(version) {
  try {
    if (await keepOffline(version)) note("This page is kept for use without a network.");
  } catch (error) {
    console.warn(`not kept for use without a network: ${code(error)}:`, error);
  }
}

// --- the conversation ------------------------------------------------------------------------------------

/** Whether a reply may be asked for now; goes to the setting that is wrong. */
function mayAsk() {
  if (current) return false;
  const wrong = settings.firstWrong();
  if (wrong) settings.open(wrong);
  return wrong === null;
}

/** A new turn at the end of the conversation. @param {string} question
 * @param {import("./transcript.js").Recorded | null} [recorded] */
function addTurn(question, recorded = null) {
  const isFree = () => model !== null && turns.at(-1) === turn && mayAsk();
  /** @type {import("./turn.js").Requests} */
  const requests = {
    again: () => {
      if (isFree()) void answer(turn);
    },
    goOn: (from) => {
      if (isFree()) void answer(turn, from);
    },
    edit: (edited) => {
      if (edited.trim() === "" || !mayAsk()) return false;
      for (const later of turns.slice(turns.indexOf(turn))) remove(later);
      start(edited);
      return true;
    },
  };
  const turn = new Turn(question, requests, recorded);
  turns.push(turn);
  log.append(turn.element);
  welcome.hidden = true;
  return turn;
}

/** @param {string} question */
function ask(question) {
  if (question.trim() === "" || !mayAsk()) return;
  input.value = "";
  fitInput();
  start(question);
}

/** A new turn, which is answered when the model is there. @param {string} question */
function start(question) {
  current = addTurn(question);
  input.focus();
  page.scrollTop = page.scrollHeight;
  if (model) void answer(current);
  else setState(state() === "error" ? "error" : "loading");
}

/** @param {Turn} turn @param {import("./turn.js").Answered | null} [from] a reply of it that goes on */
function answer(turn, from = null) {
  answering = answerNow(turn, from);
  return answering;
}

/** @param {Turn} turn @param {import("./turn.js").Answered | null} from */
async function answerNow(turn, from) {
  current = turn;
  // Another conversation may be shown before the reply has ended: it is stored where it began.
  const conversation = turns;
  const place = saved?.head;
  // A reply that is asked for again stays what it was until there is another one.
  const before = from ?? turn.answered;
  loading.open = false;
  setState("busy");
  say("The model reads.");
  try {
    if (!model) throw new Error("no model");
    turn.begin(model.info.model.title, from);
    follow();
    const { messages, params } = turn.recorded
      ? recordedRequest(turn.recorded)
      : from
        ? goingOn(from.result.transcript)
        : request(turn);
    // A stopped run is made again as far as it went.
    const { reason, generated_ids: ids = [] } = turn.recorded ?? {};
    const stopAsBefore = () => {
      if (reason === "cancelled" && running.nTokens >= ids.length) running.cancel();
    };
    const running = model.chat(messages, {
      ...params,
      onContext: (ledger) => turns.includes(turn) && say(meter.show(ledger, messages) || "The model reads."),
      onPrefill: (done, total) => turn.prefill(done, total),
      onQueue: (place) => place > 0 && turn.note(`waits: other tabs have asked before (${place})`),
      onReasoning: (delta) => {
        turn.think(delta, running.nTokens);
        stopAsBefore();
      },
    });
    chat = running;
    for await (const delta of running) {
      const pinned = isPinned();
      turn.append(delta, running.nTokens);
      stopAsBefore();
      if (pinned) follow();
      else latest.hidden = false;
    }
    const pinned = isPinned();
    const result = await running.result;
    turn.end(result);
    if (before && turn.answered === null && !turn.recorded) turn.restore(before);
    if (result.reason !== "cancelled" && result.text !== "") void keepStorage();
    const { recorded } = turn;
    say(recorded ? turn.judge(difference(recorded, JSON.parse(result.transcript))) : "");
    if (pinned) follow();
    if (turns.includes(turn)) byId("announcer", HTMLElement).textContent = turn.spoken;
    if (recorded) showContext();
  } catch (error) {
    // Stopped while other tabs' requests were before it: as if it had not been sent.
    const isUnsent = code(error) === "cancelled" && !chat?.nTokens && !turn.recorded && !before;
    const refused = error instanceof Slm2Error && !turn.recorded && !from ? settings.refuse(error) : null;
    if (isUnsent && turns.includes(turn)) {
      remove(turn);
      takeBack(turn.question);
    } else turn.fail(error, turnActions(error, turn, refused, from), before);
    follow();
  }
  chat = null;
  current = null;
  if (conversation.includes(turn)) void save(conversation, place);
  latest.hidden = true;
  setState(model?.failure ? "error" : "ready");
}

/** What a turn asks of the model: the conversation before it and its question. @param {Turn} turn */
function request(turn) {
  const before = turns.slice(0, turns.indexOf(turn)).flatMap((each) => each.messages(model?.info.template ?? {}));
  const messages = [...settings.system(), ...before, { role: "user", content: turn.question }];
  return { messages, params: settings.params() };
}

/** What a reply asks that goes on: the same as before, from its ids. @param {string} transcript */
function goingOn(transcript) {
  const { messages, params } = recordedRequest(JSON.parse(transcript));
  const { continue_ids, ...same } = params;
  return { messages, params: { ...same, continue_from: transcript } };
}

/** Makes a saved run again, and compares. @param {File} file */
async function check(file) {
  try {
    const recorded = await readTranscript(file);
    if (!model || current) return;
    const turn = addTurn(String(recorded.request.messages.at(-1)?.content ?? ""), recorded);
    await answer(turn);
  } catch (error) {
    addTurn(file.name).fail(error, []);
  }
}

/** @param {unknown} error @param {Turn} turn @param {string | null} [refused] the setting that is wrong
 * @param {import("./turn.js").Answered | null} [from] what it went on from */
function turnActions(error, turn, refused = null, from = null) {
  const edit = button("Edit the message", () => {
    remove(turn);
    takeBack(turn.question);
  });
  const again = button("Try again", () => {
    if (current) return;
    remove(turn);
    turns.push(turn);
    log.append(turn.element);
    current = turn;
    goesOnFrom = from;
    void load();
  });
  if (!(error instanceof Slm2Error)) return [button("Reload the page", () => location.reload())];
  if (error.code === "protocol.version") return [button("Reload the page", () => location.reload())];
  const set = button("Settings", () => settings.open(refused ?? undefined));
  if (error.code === "input.budget") return [edit, set, button("New chat", newChat)];
  if (["input.params", "input.response_format"].includes(error.code)) return [edit, set];
  return error.code.startsWith("input.") || error.code.startsWith("template.") ? [edit] : [again, edit];
}

/** Stops the reply; a message that still waits for the model goes back to where it was typed. */
function stopReply() {
  if (chat) {
    chat.cancel();
  } else if (current && state() !== "busy") {
    const turn = current;
    remove(turn);
    current = goesOnFrom = null;
    takeBack(turn.question);
    setState(state() === "error" ? "error" : "loading");
  }
  input.focus();
}

/** Puts a message back to where it was typed, above what has been typed since. @param {string} question */
function takeBack(question) {
  input.value = input.value.trim() === "" ? question : `${question}\n\n${input.value}`;
  fitInput();
  input.focus();
}

/** @param {Turn} turn */
function remove(turn) {
  turns = turns.filter((each) => each !== turn);
  turn.element.remove();
  welcome.hidden = turns.length > 0;
  showContext();
}

/** The meter of the last reply. */
function showContext() {
  const prompt = turns.findLast((turn) => turn.prompt)?.prompt;
  if (prompt) meter.show(prompt.ledger, prompt.messages);
  else meter.clear();
}

/** Puts a conversation into the store, with each reply that counts.
 * @param {readonly Turn[]} conversation @param {import("./conversations/record.js").Head} [place] the current one */
async function save(conversation, place) {
  try {
    await saved?.save(conversation, place);
    saveError.replaceChildren();
    panel?.changed();
  } catch (error) {
    saveError.replaceChildren(errorCard(error, [button("Try again", () => void save(conversation, place))]));
  }
}

/** The conversations of this browser, and the one that this tab showed before a reload. */
async function restore() {
  const { store, why } = await openStore();
  saved = new Current(store);
  panel = new ConversationPanel(store, {
    current: () => saved?.id ?? "",
    open: openConversation,
    forget: forgetConversation,
  });
  if (why) note(`${why.meaning} ${why.remedy} (${why.code}: ${why.message})`);
  try {
    const before = await saved.restore();
    if (turns.length === 0) showTurns(before);
    else saved.begin(); // something has been asked meanwhile: that is a conversation of its own
  } catch (error) {
    saveError.replaceChildren(errorCard(error, []));
  }
  document.documentElement.dataset.conversations = "ready";
}

/** Shows another conversation of the store. @param {string} id */
async function openConversation(id) {
  const opened = await saved?.open(id);
  if (!opened) return;
  clear();
  showTurns(opened);
  say("Conversation opened.");
}

/** @param {import("./conversations/record.js").KeptTurn[]} kept */
function showTurns(kept) {
  for (const { question, answered } of kept) addTurn(question).restore(answered);
  showContext();
  follow();
}

function newChat() {
  clear();
  saved?.begin();
}

/** Leaves the conversation, and a reply that has not ended with it. */
function forgetConversation() {
  const forgotten = turns;
  newChat();
  forgotten.length = 0;
}

/** Leaves the conversation. */
function clear() {
  if (chat || current) stopReply();
  for (const turn of turns) turn.element.remove();
  turns = [];
  meter.clear();
  saveError.replaceChildren();
  welcome.hidden = false;
  byId("announcer", HTMLElement).textContent = "";
  page.scrollTop = 0;
  input.focus();
}

/** Another model takes the place of this one. @param {string} name */
async function useModel(name) {
  if (chat) stopReply();
  await answering;
  const query = new URLSearchParams(location.search);
  query.set("model", name);
  history.replaceState(null, "", `?${query}`);
  await load();
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

/** @param {string} selector of a button of the last turn */
const pressLast = (selector) => /** @type {HTMLElement | null} */ (turns.at(-1)?.element.querySelector(selector))?.click();
const editLast = () => pressLast(".edit:not([hidden])");

byId("composer", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  ask(input.value);
});
input.addEventListener("input", fitInput);
input.addEventListener("keydown", (event) => {
  if (event.key === "ArrowUp" && input.value === "" && !isComposing(event) && !current) editLast();
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
  event.preventDefault();
  ask(input.value);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]") && !isComposing(event) && current) stopReply();
});
stop.addEventListener("click", stopReply);
latest.addEventListener("click", follow);
page.addEventListener("scroll", () => {
  if (isPinned()) latest.hidden = true;
});
byId("new-chat", HTMLButtonElement).addEventListener("click", newChat);
byId("check", HTMLButtonElement).addEventListener("click", () => {
  if (model && !current) byId("transcript", HTMLInputElement).click();
});
byId("transcript", HTMLInputElement).addEventListener("change", ({ target }) => {
  const field = /** @type {HTMLInputElement} */ (target);
  for (const file of field.files ?? []) void check(file);
  field.value = "";
});
for (const example of byId("examples", HTMLElement).querySelectorAll("button")) {
  example.addEventListener("click", () => ask(example.textContent ?? ""));
}

new ModelPicker(
  () => model?.info.model.name ?? null,
  (name) => void useModel(name),
);
new Keyboard([
  { code: "KeyC", key: "C", label: "lists your chats", run: () => panel?.open() },
  { code: "KeyN", key: "N", label: "begins a new chat", run: newChat },
  { code: "KeyM", key: "M", label: "shows the models", run: () => byId("open-models", HTMLElement).click() },
  { code: "Comma", key: ",", label: "opens the settings", run: () => settings.open() },
  { code: "KeyI", key: "I", label: "goes to the message field", run: () => input.focus() },
  { code: "KeyY", key: "Y", label: "copies the last reply", run: () => pressLast(".copy-reply") },
  { code: "KeyR", key: "R", label: "answers the last message again", run: () => pressLast(".again") },
]);

byId("not-started", HTMLElement).remove();
const draft = keptDraft();
if (draft) takeBack(draft);
void restore();
void load();
