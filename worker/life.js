// Life: how the page hears of a worker that ends without a word.
//
// Theory of operation. A worker that throws raises an event in its page; one that is ended by the browser, or ends
// itself, raises none, and whoever waits for its answer waits forever. But the browser takes a worker's locks away
// with it. So a worker holds one, of its own name, from before its first message until its end; the page asks for
// the same lock after that message, and gets it when the worker is no more. A worker that ends before its first message
// is noticed by its silence: it has START_MS, enough to fetch its scripts, and is taken for dead if it then holds no
// lock either. Where a page may have no locks, silence at the start is all that is noticed.

// For a few dozen KB of scripts. What is big is fetched later, and told of.
const START_MS = 60_000;

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

/** In the page, right after the worker of this name was started: resolves when it has ended, or may be.
 * @param {Worker} worker @param {string} name @returns {Promise<void>} */
export function end(worker, name) {
  return new Promise((resolve) => {
    const wait = () => locks()?.request(name, () => resolve()).catch(() => {});
    const silence = setTimeout(async () => {
      const { held = [] } = (await locks()?.query().catch(() => null)) ?? {};
      if (held.some((lock) => lock.name === name)) wait();
      else resolve();
    }, START_MS);
    const spoke = () => {
      clearTimeout(silence);
      wait();
    };
    worker.addEventListener("message", spoke, { once: true });
  });
}
