// Life: how the page hears of a worker that ends without a word.
//
// Theory of operation. A worker that throws raises an event in its page; one that is ended by the browser, or ends
// itself, raises none, and whoever waits for its answer waits forever. But the browser takes a worker's locks away
// with it. So a worker holds one, of its own name, from before its first message until its end; the page asks for
// the same lock after that message, and gets it when the worker is no more. Where a page may have no locks, both
// do without.

const locks = () => /** @type {LockManager | undefined} */ (navigator.locks);

/** In the worker: resolves when the lock of this worker's name is held; gives what lets it go, for a worker that may
 * be ended.
 * @returns {Promise<() => void>} */
export function live() {
  return new Promise((resolve) => {
    const without = () => resolve(() => {});
    const held = () => new Promise((done) => resolve(() => done(undefined)));
    locks()?.request(self.name, held).catch(without) ?? without();
  });
}

/** In the page, after the worker's first message: resolves when the worker of this name has ended, or may be.
 * @param {string} name @returns {Promise<void>} */
export function end(name) {
  return new Promise((resolve) => {
    locks()?.request(name, () => resolve()).catch(() => {});
  });
}
