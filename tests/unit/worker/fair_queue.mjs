// What web/tabs/fairqueue.js does, as JSON: node fair_queue.mjs WEB_FOLDER
// Reads a list of steps: ["push", tab, n], ["shift"], ["remove", n], ["order"]; writes what each gives.
const { FairQueue } = await import(`file://${process.argv[2]}/tabs/fairqueue.js`);
let text = "";
for await (const chunk of process.stdin) text += chunk;
const queue = new FairQueue();
const given = JSON.parse(text).map(([step, ...args]) => {
  if (step === "push") queue.push({ tab: args[0], n: args[1] });
  else if (step === "shift") return queue.shift()?.n ?? null;
  else if (step === "remove") return queue.remove(({ n }) => n === args[0]).map(({ n }) => n);
  return queue.order().map(({ n }) => n);
});
process.stdout.write(JSON.stringify(given));
