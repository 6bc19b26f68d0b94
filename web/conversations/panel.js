// Panel: the list of conversations in a drawer: open, rename, export, import, delete and take that back.
//
// Deleting moves a conversation to the folded list at the end, from where it comes back, or goes for good: at once when
// asked to, else after KEPT_DELETED_DAYS.

import { button, byId, count, download, make } from "../dom.js";
import { errorCard } from "../errors.js";
import { newId } from "../ids.js";
import { checkTitle, checkTurns, MAX_TITLE_CHARS } from "./record.js";
import { exportName, exportText, importFile } from "./transfer.js";

/** @typedef {import("./record.js").Head} Head */
/** @typedef {import("./store.js").Store} Store */
/** What the page does. @typedef {{current: () => string, open: (id: string) => Promise<void>, forget: () => void}} Page */

const KEPT_DELETED_DAYS = 30;
const DAY_MS = 86_400_000;
const CHANNEL = "slm2-conversations";

export class ConversationPanel {
  #dialog = byId("chats", HTMLDialogElement);
  #list = byId("chat-list", HTMLElement);
  #deleted = byId("chat-deleted", HTMLDetailsElement);
  #deletedList = byId("chat-deleted-list", HTMLElement);
  #errors = byId("chats-error", HTMLElement);
  #status = byId("chats-status", HTMLElement);
  #import = byId("import-file", HTMLInputElement);
  #channel = new BroadcastChannel(CHANNEL);
  #store;
  #page;

  /** @param {Store} store @param {Page} page */
  constructor(store, page) {
    this.#store = store;
    this.#page = page;
    byId("open-chats", HTMLButtonElement).addEventListener("click", () => this.open());
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
    byId("import-chats", HTMLButtonElement).addEventListener("click", () => this.#import.click());
    byId("export-chats", HTMLButtonElement).addEventListener("click", () => this.#try(() => this.#exportAll()));
    this.#import.addEventListener("change", () => {
      const [file] = this.#import.files ?? [];
      this.#import.value = "";
      if (file) void this.#try(() => this.#importFrom(file));
    });
    this.#channel.addEventListener("message", () => {
      // A name that is being typed stays; the list is made anew when that has ended.
      if (this.isOpen && !this.#list.querySelector("form")) void this.#try(() => this.#show());
    });
    byId("chats-lasting", HTMLElement).hidden = store.lasting;
  }

  get isOpen() {
    return this.#dialog.open;
  }

  open() {
    this.#errors.replaceChildren();
    this.#status.textContent = "";
    if (!this.#dialog.open) this.#dialog.showModal();
    void this.#try(async () => {
      await this.#purge();
      await this.#show();
    });
  }

  /** The store has changed: other tabs show it. */
  changed() {
    this.#channel.postMessage(null);
  }

  /** Shows what goes wrong. @param {() => Promise<void>} work */
  async #try(work) {
    try {
      this.#errors.replaceChildren();
      await work();
    } catch (error) {
      this.#errors.replaceChildren(errorCard(error, []));
      this.#errors.scrollIntoView({ block: "nearest" });
    }
  }

  async #purge() {
    const before = new Date(Date.now() - KEPT_DELETED_DAYS * DAY_MS).toISOString();
    for (const { id, deleted } of await this.#store.heads()) {
      if (deleted !== null && deleted < before) await this.#store.remove(id);
    }
  }

  async #show() {
    const heads = (await this.#store.heads()).sort((a, b) => (a.changed < b.changed ? 1 : -1));
    const [there, deleted] = [heads.filter((head) => !head.deleted), heads.filter((head) => head.deleted)];
    this.#list.replaceChildren(...there.map((head) => this.#item(head)));
    this.#deletedList.replaceChildren(...deleted.map((head) => this.#deletedItem(head)));
    this.#deleted.hidden = deleted.length === 0;
    byId("chat-deleted-count", HTMLElement).textContent = `Deleted (${deleted.length})`;
    byId("chats-empty", HTMLElement).hidden = there.length > 0;
    byId("export-chats", HTMLButtonElement).hidden = there.length === 0;
  }

  /** @param {Head} head */
  #item(head) {
    const { id, title } = head;
    const isCurrent = id === this.#page.current();
    const opens = button("", () => void this.#try(() => this.#open(id)), "chat-title");
    opens.append(make("span", { dir: "auto" }, title));
    if (isCurrent) opens.setAttribute("aria-current", "true");
    const line = make("li", { class: "chat", "data-id": id }, opens, make("p", { class: "aside" }, figures(head)));
    const named = (/** @type {string} */ verb, /** @type {() => void} */ act) => {
      const element = button(verb, act, "quiet");
      element.setAttribute("aria-label", `${verb} “${title}”`);
      return element;
    };
    const rename = () => this.#rename(head, line);
    const save = () => void this.#try(async () => offer([await this.#exported(head)]));
    const remove = () => void this.#try(() => this.#delete(head));
    line.append(make("p", { class: "acts" }, named("Rename", rename), named("Export", save), named("Delete", remove)));
    return line;
  }

  /** @param {Head} head */
  #deletedItem({ id, title }) {
    const restore = button("Restore", () => void this.#try(() => this.#restore(id, title)), "quiet");
    restore.setAttribute("aria-label", `Restore “${title}”`);
    const forget = button("Delete for good", () => void this.#try(() => this.#forget(id, title)), "quiet");
    forget.setAttribute("aria-label", `Delete “${title}” for good`);
    return make("li", { class: "chat" }, make("span", { dir: "auto" }, title), make("p", { class: "acts" }, restore, forget));
  }

  /** @param {string} id */
  async #open(id) {
    if (id !== this.#page.current()) await this.#page.open(id);
    this.#dialog.close();
  }

  /** @param {Head} head @param {HTMLElement} line */
  #rename(head, line) {
    const field = make("input", { type: "text", "aria-label": `New name of “${head.title}”`, dir: "auto" });
    field.maxLength = MAX_TITLE_CHARS;
    field.value = head.title;
    const form = make("form", { class: "rename" }, field, make("button", { class: "primary" }, "Rename"), button("Cancel", () => done()));
    const done = () => void this.#try(async () => {
      await this.#show();
      this.#focus(head.id, "Rename");
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#try(async () => {
        const title = checkTitle(field.value.trim(), "name");
        await this.#store.change(head.id, { title, titled: true });
        this.changed();
        this.#status.textContent = `Renamed: “${title}”.`;
        await this.#show();
        this.#focus(head.id, "Rename");
      });
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.preventDefault(); // the drawer stays open
      done();
    });
    line.replaceChildren(form);
    field.select();
  }

  /** @param {Head} head */
  async #delete({ id, title }) {
    await this.#store.change(id, { deleted: new Date().toISOString() });
    this.changed();
    if (id === this.#page.current()) this.#page.forget();
    await this.#show();
    const undo = button("Undo", () => void this.#try(() => this.#restore(id, title)), "quiet");
    this.#status.replaceChildren(`“${title}” is deleted; it is kept for ${KEPT_DELETED_DAYS} days. `, undo);
    undo.focus();
  }

  /** @param {string} id @param {string} title */
  async #restore(id, title) {
    await this.#store.change(id, { deleted: null });
    this.changed();
    await this.#show();
    this.#status.textContent = `“${title}” is back.`;
    this.#focus(id, "Delete");
  }

  /** @param {string} id @param {string} title */
  async #forget(id, title) {
    await this.#store.remove(id);
    this.changed();
    await this.#show();
    this.#status.textContent = `“${title}” is gone for good.`;
    byId("close-chats", HTMLButtonElement).focus();
  }

  /** Where the keyboard goes on in a list that was made anew. @param {string} id @param {string} verb */
  #focus(id, verb) {
    const line = [...this.#list.children].find((each) => /** @type {HTMLElement} */ (each).dataset.id === id);
    [...(line?.querySelectorAll("button") ?? [])].find((each) => each.textContent === verb)?.focus();
  }

  /** What a file holds of a conversation. @param {Head} head */
  async #exported({ id, title, created, changed }) {
    const found = await this.#store.read(id);
    return { title, created, changed, turns: checkTurns(found?.turns, title) };
  }

  /** All that can be read; of the others it says why not. */
  async #exportAll() {
    const heads = (await this.#store.heads()).filter(({ deleted }) => deleted === null);
    const all = [];
    for (const head of heads.sort((a, b) => (a.created < b.created ? -1 : 1))) {
      try {
        all.push(await this.#exported(head));
      } catch (error) {
        this.#errors.append(errorCard(error, []));
      }
    }
    if (all.length > 0) offer(all);
  }

  /** @param {File} file */
  async #importFrom(file) {
    const conversations = await importFile(file);
    for (const { title, created, changed, turns } of conversations) {
      const own = { id: newId(), titled: true, deleted: null, revision: 1, n_turns: turns.length };
      await this.#store.write({ ...own, title, created, changed }, turns);
    }
    this.changed();
    await this.#show();
    this.#status.textContent = `${count(conversations.length, "conversation")} imported.`;
  }
}

/** @param {import("./record.js").Exported[]} conversations */
const offer = (conversations) => download(exportName(conversations), exportText(conversations));

/** @param {Head} head */
function figures({ changed, n_turns: n }) {
  const when = new Date(changed).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  return `${n === 1 ? "1 reply" : `${n} replies`} · ${when}`;
}
