// Candidate: this tab in the row of those that wait for a place's lock, for all in the tab that want the model.
//
//     waiting ──lock──▶ host ──ends──▶ over          it failed, or nobody wanted it any more
//        ▲               └──stolen──▶ waiting        another tab took it for hung, or the page was left and is back
//        └── withdrawn when nobody in the tab wants it

import { Host } from "./host.js";
import { hostLock } from "./line.js";

/** @typedef {import("../../worker/protocol.js").Slm2Error} AnyError */

export class Candidate {
  /** Of this tab, by place. @type {Map<string, Candidate>} */
  static #all = new Map();
  /** While this tab has the lock. @type {Host | null} */
  host = null;
  /** Who wants the model in this tab, by id, and how they are told of its end. @type {Map<string, (error: AnyError) => void>} */
  #users = new Map();
  #withdraw = new AbortController();
  #isStealing = false;
  #place;

  /** That of this tab, with one user more.
   * @param {import("./line.js").Place} place @param {string} id @param {(error: AnyError) => void} fail
   * @returns {Candidate} */
  static of(place, id, fail) {
    const known = Candidate.#all.get(place.name);
    const candidate = known && !known.host?.isOver ? known : new Candidate(place);
    candidate.#users.set(id, fail);
    return candidate;
  }

  /** @param {import("./line.js").Place} place */
  constructor(place) {
    this.#place = place;
    Candidate.#all.set(place.name, this);
    this.#stand(false);
  }

  /** Asks for the lock, or takes it. @param {boolean} steal */
  #stand(steal) {
    const { signal } = (this.#withdraw = new AbortController());
    this.#isStealing = steal;
    /** @type {Host | null} */
    let host = null;
    const serve = () => {
      if (signal.aborted || this.#users.size === 0) return undefined;
      this.#isStealing = false;
      host = this.host = new Host(this.#place, () => this.#users.size > 0);
      return host.ended;
    };
    const over = () => {
      if (!host) return;
      this.#forget();
      // It may have failed before they had a line to it.
      if (host.failure) for (const fail of [...this.#users.values()]) fail(host.failure);
    };
    /** @param {any} error */
    const lost = async (error) => {
      // Withdrawn, or no lock is to be had: then nobody will be heard.
      if (signal.aborted || error.name !== "AbortError") return;
      if (this.host === host) this.host = null;
      await host?.end();
      if (this.#users.size > 0) this.#stand(false);
      else this.#forget();
    };
    navigator.locks.request(hostLock(this.#place), steal ? { steal } : { signal }, serve).then(over, lost);
  }

  /** Takes the lock from a host that is hung. */
  steal() {
    if (this.host || this.#isStealing) return;
    this.#withdraw.abort();
    this.#stand(true);
  }

  #forget() {
    if (Candidate.#all.get(this.#place.name) === this) Candidate.#all.delete(this.#place.name);
  }

  /** One user less, `id` among the host's guests. Resolves when what it had here is free.
   * @param {string} id @returns {Promise<void>} */
  async release(id) {
    this.#users.delete(id);
    if (this.host) {
      await this.host.leave(id);
    } else if (this.#users.size === 0) {
      this.#forget();
      this.#withdraw.abort();
    }
  }
}
