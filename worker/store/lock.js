// Lock: one tab at a time at a file. Whoever comes second waits, and finds what the first has stored.
//
// The browser takes a lock away with the worker that holds it, so a tab that is closed in the middle of a download
// leaves its beginning to the next one.

/** What `work` gives, done while nobody else of this origin holds the lock of this name. Where a page may have no
 * locks it may have no storage either, and there is nothing to guard.
 *
 * Rejects with the signal's reason.
 * @template T @param {string} name @param {AbortSignal | undefined} signal @param {() => Promise<T>} work
 * @returns {Promise<T>} */
export async function locked(name, signal, work) {
  const locks = /** @type {LockManager | undefined} */ (navigator.locks);
  if (!locks) return work();
  return locks.request(`slm2 store ${name}`, signal ? { signal } : {}, work);
}

/** As `locked`, when nobody holds the lock now; else null, at once.
 * @template T @param {string} name @param {() => Promise<T>} work @returns {Promise<T | null>} */
export async function ifFree(name, work) {
  const locks = /** @type {LockManager | undefined} */ (navigator.locks);
  if (!locks) return work();
  return locks.request(`slm2 store ${name}`, { ifAvailable: true }, (lock) => (lock ? work() : null));
}
