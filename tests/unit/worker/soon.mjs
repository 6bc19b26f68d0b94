// What soon.js does, as JSON: node soon.mjs WORKER_FOLDER
const errors = [];
globalThis.reportError = (error) => errors.push(error.message);
const { soon } = await import(`file://${process.argv[2]}/soon.js`);
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Callbacks that call for more, over several looks at the messages: the order is that of the calls.
const N = 3000;
/** @type {number[]} */
const order = [];
let called = 0;
await new Promise((resolve) => {
  const call = () => {
    const id = called++;
    soon(() => {
      order.push(id);
      if (order.length === N) resolve(0);
      if (called < N) call();
      if (called < N && id % 7 === 0) call();
      if (id % 100 === 0) for (const until = performance.now() + 2; performance.now() < until; );
    });
  };
  call();
});
const inOrder = order.every((id, i) => id === i);

// Python that never waits for anything but itself: a message is read meanwhile.
const { port1, port2 } = new MessageChannel();
let heard = false;
port1.onmessage = () => (heard = true);
const start = performance.now();
await new Promise((resolve) => {
  const spin = () => (heard || performance.now() - start > 5000 ? resolve(0) : soon(spin));
  soon(spin);
  port2.postMessage(null);
});

// One that fails among others that wait.
const ran = [];
await pause(20);
soon(() => ran.push("first"));
soon(() => {
  throw new Error("on purpose");
});
soon(() => ran.push("last"));
await pause(20);

// A timer is one.
const before = performance.now();
const timer = await new Promise((resolve) => soon(() => resolve(performance.now() - before), 30));

console.log(JSON.stringify({ calls: order.length, inOrder, heard, ran, errors, timer }));
process.exit(0);
