// Lines and locks between the tabs of an origin: how a shared model's tabs (slm.js) and its host (host.js) find each other,
// speak, and hear of each other's end.
//
//     lock  "slm2 host PLACE"             held by the tab that runs the model; the others wait for it in a row
//     lock  "slm2 tab ID"                 held by each that uses it, and by the host, as long as it lives
//     line  "slm2 lobby PLACE"            hello, lead: who is there
//     line  "slm2 line HOST ID"           one tab and one host, nobody else
//
// A place is what a model is shared by: protocol, site, its version, its workers, model, executor, context. It is part of
// the names, so what differs in any of it never meets. A line's name has the host's: what a host has said that is no more comes to
// nobody. All of it is of one origin, as the browser sees it: no other site hears a word.

import { check, ProtocolError } from "../../worker/protocol.js";

/** @typedef {import("../../worker/protocol.js").Channels} Channels */
/** @typedef {import("../client.js").Prepared} Prepared */
/** `name`: what tells it from others. @typedef {Omit<Prepared, "site"> & {name: string, site: string}} Place */

/** Why nothing can be shared here, or null. @returns {"locks" | "channels" | null} */
export function missing() {
  if (typeof (/** @type {any} */ (navigator).locks?.request) !== "function") return "locks";
  return typeof BroadcastChannel === "function" ? null : "channels";
}

/** @param {Place} place */
export const hostLock = ({ name }) => `slm2 host ${name}`;
/** @param {string} id */
export const tabLock = (id) => `slm2 tab ${id}`;
/** @param {Place} place */
export const lobbyName = ({ name }) => `slm2 lobby ${name}`;
/** @param {string} host @param {string} id */
export const lineName = (host, id) => `slm2 line ${host} ${id}`;

/** A lock of this name, held until what it resolves to is called; again after it was lost, as WebKit takes the locks of a
 * page that is left and come back to. Rejects where a page may hold none.
 * @param {string} name @returns {Promise<() => void>} */
export function hold(name) {
  return new Promise((resolve, reject) => {
    let isOver = false;
    let letGo = () => {};
    const release = () => {
      isOver = true;
      letGo();
    };
    const ask = () => {
      let isHeld = false;
      const held = () => {
        isHeld = true;
        resolve(release);
        return isOver ? undefined : new Promise((done) => (letGo = () => done(undefined)));
      };
      navigator.locks.request(name, held).catch((error) => (isHeld && !isOver ? ask() : reject(error)));
    };
    ask();
  });
}

/** Whether this host has its place still: it may have been taken from it while its tab stood still.
 * @param {Place} place @param {string} host @returns {Promise<boolean>} */
export async function isHeld(place, host) {
  const { held = [] } = await navigator.locks.query().catch(() => ({ held: [] })); // a page that goes away leads nobody
  const clientOf = (/** @type {string} */ name) => held.find((lock) => lock.name === name)?.clientId;
  const client = clientOf(hostLock(place));
  return client !== undefined && client === clientOf(tabLock(host));
}

/** One end of a line. Checks what it hears.
 * @template {keyof Channels} Heard @template {keyof Channels} Said */
export class Line {
  #channel;

  /** @param {string} name @param {Heard} heard @param {Said} said
   * @param {(message: Channels[Heard]) => void} receive @param {(error: any) => void} refuse what is no such message */
  constructor(name, heard, said, receive, refuse) {
    this.said = said;
    this.#channel = new BroadcastChannel(name);
    this.#channel.onmessage = ({ data }) => {
      try {
        check(heard, data);
      } catch (error) {
        return refuse(error);
      }
      receive(data);
    };
    this.#channel.onmessageerror = () => refuse(new ProtocolError("protocol.message", `${name}: a message could not be read`));
  }

  /** @param {Channels[Said]} message */
  say(message) {
    this.#channel.postMessage(message);
  }

  close() {
    this.#channel.onmessage = this.#channel.onmessageerror = null;
    this.#channel.close();
  }
}
