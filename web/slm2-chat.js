// <slm2-chat>: a chat with a model in the page, as an element. docs/element.md.
//
//     <script type="module" src="…/web/slm2-chat.js"></script>
//     <slm2-chat model="smollm2-135m"></slm2-chat>
//
// It is made of what another page could use: engine.js (one model for all elements of a page), markdown-view.js, and
// no more of the page than its own shadow tree.

import { button, isComposing, make } from "./dom.js";
import { LoadProgress } from "./element/progress.js";
import { fill, labelsOf, LABELS } from "./element/labels.js";
import { styleSheet } from "./element/style.js";
import { errorCard, Turn } from "./element/turn.js";
import { Cancelled } from "./client.js";
import { engineOf } from "./engine.js";
import { code } from "./errors.js";
import { badInput } from "./request.js";

/** @typedef {import("./engine.js").Engine} Engine */
/** @typedef {import("./engine.js").Slm} Slm */
/** @typedef {{text: string, reason: import("./client.js").Reason, transcript: string}} Reply */

const LOADS = ["interaction", "visible", "eager"];
const ENGINE_ATTRIBUTES = ["model", "root", "workers", "executor", "max-seq-len", "share"];
const TEXT_ATTRIBUTES = ["greeting", "placeholder", "labels"];
// How near to the end still counts as reading along.
const PINNED_PX = 32;

export class Slm2Chat extends HTMLElement {
  static observedAttributes = [...ENGINE_ATTRIBUTES, ...TEXT_ATTRIBUTES, "load"];

  #labels = LABELS;
  /** @type {Record<string, string> | null} */
  #ownLabels = null;
  /** @type {Engine | null} */
  #engine = null;
  /** @type {Turn[]} */
  #turns = [];
  /** Those that run or wait, with what stops them. @type {Map<Turn, AbortController>} */
  #open = new Map();
  #progress = new LoadProgress();
  /** Where the log was scrolled to last. */
  #followed = 0;
  /** @type {IntersectionObserver | null} */
  #observer = null;
  /** Attributes that are wrong, and where that is said. @type {Map<string, HTMLElement>} */
  #wrong = new Map();
  /** What is loading, told of once however many wait for it. @type {{engine: Engine, end: Promise<void>} | null} */
  #loading = null;
  #parts;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [styleSheet()];
    this.#parts = build();
    root.append(this.#parts.chat, this.#parts.announcer);
    this.#listen();
  }

  connectedCallback() {
    this.#relabel();
    this.#attach();
    this.#watch();
  }

  disconnectedCallback() {
    this.#observer?.disconnect();
    // An element that is only moved is connected again at once.
    queueMicrotask(() => {
      if (this.isConnected) return;
      this.stop();
      this.#engine?.release(this);
      this.#engine = null;
    });
  }

  /** @param {string} name */
  attributeChangedCallback(name) {
    if (!this.isConnected) return;
    if (TEXT_ATTRIBUTES.includes(name)) {
      this.#relabel();
    } else {
      this.#attach();
      this.#watch();
    }
  }

  // --- what a page may ask -------------------------------------------------------------------------------

  /** The words of the element in another language; see labels.js. @returns {Record<string, string>} */
  get labels() {
    return this.#labels;
  }

  set labels(labels) {
    this.#labels = labelsOf(labels);
    this.#ownLabels = labels;
    this.#relabel();
  }

  /** What runs: `slm.info`; null before it does. */
  get info() {
    return this.#engine?.info ?? null;
  }

  /** The conversation so far, as messages. */
  get messages() {
    return this.#turns.flatMap((turn) => turn.messages);
  }

  /** Begins to load the model, if it isn't there.
   *
   * Rejects with what SLM2.load rejects with.
   * @returns {Promise<void>} */
  async load() {
    const engine = this.#attach();
    if (engine.state !== "ready") await this.#loadOnce(engine, true);
  }

  /** Asks, as if a visitor had typed it.
   *
   * A reply that is stopped is a reply, with reason `cancelled`; one that is stopped before it began rejects with
   * Cancelled. Rejects with what SLM2.load and `slm.chat` throw.
   * @param {string} text @param {{signal?: AbortSignal}} [options] @returns {Promise<Reply>} */
  async ask(text, options = {}) {
    if (typeof text !== "string" || text.trim() === "") throw badInput("input.json", "text", text, "a string that says something");
    const { signal } = options;
    if (signal !== undefined && !(signal instanceof AbortSignal)) throw badInput("input.params", "options.signal", signal, "an AbortSignal");
    const turn = new Turn(text, this.#labels);
    const stopper = new AbortController();
    const stopped = signal ? AbortSignal.any([signal, stopper.signal]) : stopper.signal;
    const engine = this.#attach();
    engine.hold(turn);
    this.#turns.push(turn);
    this.#open.set(turn, stopper);
    this.#parts.log.append(...turn.elements);
    turn.note(this.#labels.queued);
    this.#showState();
    this.#follow();
    // What goes wrong with it is the reply's.
    if (engine.state !== "ready") this.#loadOnce(engine, false).catch(() => {});
    try {
      return await engine.run(this, (slm) => this.#answer(slm, turn, stopped), stopped);
    } catch (error) {
      if (error instanceof Cancelled && stopped.aborted) {
        turn.drop(this.#labels.stopped);
      } else {
        turn.fail(error, [this.#retry(turn)]);
        this.#tellError(error);
      }
      throw error;
    } finally {
      this.#open.delete(turn);
      engine.release(turn);
      this.#showState();
      this.#keepUp();
    }
  }

  /** Ends the reply that runs, and those that wait. */
  stop() {
    for (const stopper of this.#open.values()) stopper.abort();
  }

  /** Forgets the conversation. */
  reset() {
    this.stop();
    for (const turn of this.#turns) for (const element of turn.elements) element.remove();
    this.#turns = [];
    this.#parts.announcer.textContent = "";
    this.#showState();
  }

  // --- the model -----------------------------------------------------------------------------------------

  /** The engine that the attributes name. @returns {Engine} */
  #attach() {
    const engine = engineOf(this.#engineOptions());
    if (engine !== this.#engine) {
      this.#engine?.release(this);
      this.#engine = engine;
      this.#progress = new LoadProgress();
    }
    if (this.isConnected) {
      engine.hold(this, {
        progress: (progress) => {
          this.#progress.note(progress);
          this.#showState();
          this.#fire("progress", progress);
        },
        state: (state) => {
          if (state === "loading") this.#say(this.#labels.loading);
          this.#showState();
        },
      });
    }
    this.#showState();
    return engine;
  }

  #engineOptions() {
    const length = this.getAttribute("max-seq-len");
    return {
      model: this.getAttribute("model") ?? undefined,
      root: this.getAttribute("root") ?? undefined,
      workers: this.getAttribute("workers") ?? undefined,
      executor: /** @type {any} */ (this.getAttribute("executor") ?? undefined),
      max_seq_len: length === null ? undefined : Number(length),
      share: /** @type {any} */ (this.getAttribute("share") ?? undefined),
    };
  }

  /** Loads when the attribute says so. */
  #watch() {
    this.#observer?.disconnect();
    this.#observer = null;
    const load = this.getAttribute("load") ?? LOADS[0];
    const isWrong = !LOADS.includes(load);
    this.#showWrong("load", isWrong ? badInput("input.params", "load", load, LOADS.join(" | ")) : null);
    if (load === "eager") {
      this.#loadUnasked();
    } else if (load === "visible") {
      this.#observer = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        this.#observer?.disconnect();
        this.#loadUnasked();
      });
      this.#observer.observe(this);
    }
  }

  /** Nobody waits for it: who wants to know hears of events. */
  #loadUnasked() {
    if (this.#engine?.state !== "ready") this.load().catch(() => {});
  }

  /** @param {Engine} engine @param {boolean} isTold whether to tell of its end by more than the event of readiness
   * @returns {Promise<void>} */
  #loadOnce(engine, isTold) {
    if (this.#loading?.engine === engine) return this.#loading.end;
    this.#showError(null);
    const end = this.#load(engine, isTold).finally(() => {
      if (this.#loading === loading) this.#loading = null;
    });
    const loading = (this.#loading = { engine, end });
    return end;
  }

  /** @param {Engine} engine @param {boolean} isTold */
  async #load(engine, isTold) {
    try {
      const slm = await engine.load();
      if (isTold) this.#say(this.#labels.ready);
      this.#fire("ready", { info: slm.info });
    } catch (error) {
      if (isTold) {
        this.#showError(error);
        this.#tellError(error);
      }
      throw error;
    } finally {
      this.#showState();
    }
  }

  /** @param {Slm} slm @param {Turn} turn @param {AbortSignal} signal @returns {Promise<Reply>} */
  async #answer(slm, turn, signal) {
    const { MarkdownView } = await import("./markdown-view.js");
    turn.begin(MarkdownView);
    const chat = slm.chat(this.#messagesFor(turn), {
      ...this.#params(),
      signal,
      onPrefill: (done, total) => turn.note(fill(this.#labels.reading, { done, total })),
      onQueue: (place) => turn.note(place > 0 ? this.#labels.queued : ""),
      onReasoning: (delta) => {
        turn.think(delta);
        this.#keepUp();
      },
    });
    turn.note("");
    let text = "";
    for await (const delta of chat) {
      text += delta;
      turn.append(delta);
      this.#keepUp();
      this.#fire("delta", { delta, text });
    }
    const { reason, transcript, ...result } = await chat.result;
    turn.end({ reason, transcript, ...result });
    if (this.#turns.includes(turn)) this.#say(text || this.#labels.empty);
    const reply = { text, reason, transcript };
    this.#fire("done", reply);
    return reply;
  }

  /** @param {Turn} turn */
  #messagesFor(turn) {
    const system = this.getAttribute("system-prompt");
    const at = this.#turns.indexOf(turn);
    const before = (at < 0 ? [] : this.#turns.slice(0, at)).flatMap((each) => each.messages);
    return [
      ...(system ? [{ role: "system", content: system }] : []),
      ...before,
      { role: "user", content: turn.question },
    ];
  }

  #params() {
    const names = { temperature: "temperature", seed: "seed", "max-tokens": "max_tokens" };
    const given = Object.entries(names).map(([attribute, name]) => [name, this.getAttribute(attribute)]);
    return Object.fromEntries(
      given.filter(([, value]) => value !== null).map(([name, value]) => [name, name === "seed" ? value : Number(value || NaN)]),
    );
  }

  // --- what is seen --------------------------------------------------------------------------------------

  #listen() {
    const { form, input, stop, reset } = this.#parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    input.addEventListener("input", () => {
      fit(input);
      if ((this.getAttribute("load") ?? LOADS[0]) === "interaction") this.#loadUnasked();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
      event.preventDefault();
      this.#send();
    });
    this.#parts.chat.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !isComposing(event)) this.stop();
    });
    stop.addEventListener("click", () => {
      this.stop();
      input.focus();
    });
    reset.addEventListener("click", () => {
      this.reset();
      input.focus();
    });
  }

  #send() {
    const { input } = this.#parts;
    const text = input.value;
    if (text.trim() === "") return;
    input.value = "";
    fit(input);
    this.ask(text).catch(() => {}); // it is shown, and told of by an event
  }

  /** @param {Turn} turn */
  #retry(turn) {
    return button(this.#labels.retry, () => {
      for (const element of turn.elements) element.remove();
      this.#turns = this.#turns.filter((each) => each !== turn);
      this.ask(turn.question).catch(() => {});
      this.#parts.input.focus();
    });
  }

  #relabel() {
    try {
      this.#labels = labelsOf(this.#ownLabels ?? this.getAttribute("labels"));
      this.#showWrong("labels", null);
    } catch (error) {
      this.#labels = LABELS;
      this.#showWrong("labels", error);
    }
    const { chat, log, input, send, stop, reset, greeting, greetingSlot, bubble, bar, inputLabel } = this.#parts;
    chat.ariaLabel = this.#labels.chat;
    log.ariaLabel = this.#labels.log;
    inputLabel.textContent = this.#labels.input;
    input.placeholder = this.getAttribute("placeholder") ?? this.#labels.placeholder;
    send.textContent = this.#labels.send;
    stop.textContent = this.#labels.stop;
    reset.textContent = this.#labels.reset;
    greeting.textContent = this.getAttribute("greeting") ?? "";
    showGreeting(greetingSlot, bubble);
    bar.ariaLabel = this.#labels.loading;
    this.#showState();
  }

  #showState() {
    const { chat, input, send, stop, reset, bar, status } = this.#parts;
    const state = this.#engine?.state ?? "idle";
    const isOpen = this.#open.size > 0;
    chat.dataset.state = isOpen && state === "ready" ? "busy" : state;
    if (this.shadowRoot?.activeElement === (isOpen ? send : stop)) input.focus(); // not lost with what is hidden
    send.hidden = isOpen;
    stop.hidden = !isOpen;
    reset.hidden = this.#turns.length === 0;
    bar.hidden = state !== "loading";
    if (state === "loading") {
      const { share } = this.#progress;
      if (share === null) bar.removeAttribute("value");
      else bar.value = share;
      status.textContent = this.#progress.text(this.#labels);
    } else {
      status.textContent = "";
    }
  }

  /** @param {unknown} error that loading ended with, or null for none */
  #showError(error) {
    const again = button(this.#labels.retry, () => this.load().catch(() => {}));
    this.#parts.error.replaceChildren(...(error === null ? [] : [errorCard(error, this.#labels, [again])]));
  }

  /** What is wrong with an attribute, or null: shown until it is right. @param {string} name @param {unknown} error */
  #showWrong(name, error) {
    this.#wrong.get(name)?.remove();
    this.#wrong.delete(name);
    if (error === null) return;
    const card = errorCard(error, this.#labels, []);
    this.#wrong.set(name, card);
    this.#parts.wrong.append(card);
    this.#tellError(error);
  }

  /** Says something to who cannot see the element. @param {string} text */
  #say(text) {
    this.#parts.announcer.textContent = text;
  }

  /** Goes to the end of what is shown, unless the reader has scrolled up from where it was. */
  #keepUp() {
    const { scrollHeight, scrollTop, clientHeight } = this.#parts.log;
    if (scrollTop >= this.#followed || scrollHeight - scrollTop - clientHeight < PINNED_PX) this.#follow();
  }

  #follow() {
    const { log } = this.#parts;
    log.scrollTop = log.scrollHeight;
    this.#followed = log.scrollTop;
  }

  /** @param {string} name @param {object} detail */
  #fire(name, detail) {
    this.dispatchEvent(new CustomEvent(`slm2-${name}`, { detail, bubbles: true, composed: true }));
  }

  /** @param {unknown} error */
  #tellError(error) {
    const message = error instanceof Error ? error.message : String(error);
    this.#fire("error", { error, code: code(error), message });
  }
}

/** The shadow tree. */
function build() {
  const greeting = make("span");
  const greetingSlot = make("slot", { name: "greeting" }, greeting);
  const bubble = make("div", { class: "message greeting", part: "message greeting" }, greetingSlot);
  const log = make(
    "div",
    { class: "log", part: "log", role: "log", tabindex: "0", "aria-live": "off" },
    bubble,
  );
  const error = make("div");
  const wrong = make("div");
  const bar = make("progress", { part: "progress", max: "1" });
  const status = make("span");
  const reset = make("button", { type: "button", class: "quiet", part: "button reset" });
  const inputLabel = make("label", { class: "unseen", for: "input" });
  const input = make("textarea", { id: "input", rows: "1", part: "input", enterkeyhint: "send", autocomplete: "off" });
  const send = make("button", { type: "submit", class: "primary", part: "button send" });
  const stop = make("button", { type: "button", class: "primary", part: "button stop" });
  const form = make("form", { part: "form" }, inputLabel, input, send, stop);
  const statusLine = make("div", { class: "status", part: "status" }, status, bar, reset);
  const chat = make(
    "section",
    { class: "chat", part: "chat" },
    make("div", {}, make("slot", { name: "header" })),
    log,
    make("div", { class: "problem" }, wrong, error),
    statusLine,
    form,
    make("div", {}, make("slot", { name: "footer" })),
  );
  greetingSlot.addEventListener("slotchange", () => showGreeting(greetingSlot, bubble));
  const announcer = make("div", { class: "announcer unseen", "aria-live": "polite" });
  return { chat, log, error, wrong, bar, status, reset, inputLabel, input, send, stop, form, greeting, announcer, greetingSlot, bubble };
}

/** A greeting that says nothing isn't there. @param {HTMLSlotElement} slot @param {HTMLElement} bubble */
function showGreeting(slot, bubble) {
  bubble.hidden = slot.assignedNodes().length === 0 && slot.textContent === "";
}

/** The field is as high as its text, up to a limit that the style sets. @param {HTMLTextAreaElement} field */
function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

if (!customElements.get("slm2-chat")) customElements.define("slm2-chat", Slm2Chat);
