// Soon: runs callbacks as soon as may be, for Python's event loop, which comes here at every `await`.
//
// Theory of operation. Pyodide's own way in WebKit's workers is setTimeout, which waits 4 ms each time. A microtask
// waits for nothing, but as long as there is another one, no message is read: a cancel would not get in. So
// a callback is a microtask as long as the last look at the messages is not older than LOOK_MS; then it waits for
// a message of our own, behind those that have come, as do all that come until then: the order is kept.

const LOOK_MS = 4;
// Pyodide's bound: a timer can't be exact below it.
const AT_ONCE_MS = 2;

const { port1, port2 } = new MessageChannel();
/** Those that wait for the channel's message. @type {(() => void)[]} */
let waiting = [];
let lookedAt = -Infinity;

port1.onmessage = () => {
  lookedAt = performance.now();
  const now = waiting;
  waiting = [];
  for (const callback of now) {
    try {
      callback();
    } catch (error) {
      reportError(error); // and the others run all the same
    }
  }
};

/** Runs a callback after `delayMs`, or as soon as may be. @param {() => void} callback @param {number} [delayMs] */
export function soon(callback, delayMs = 0) {
  if (delayMs > AT_ONCE_MS) setTimeout(callback, delayMs);
  else if (performance.now() - lookedAt < LOOK_MS) queueMicrotask(callback);
  else if (waiting.push(callback) === 1) port2.postMessage(null);
}
