// Our own model through its public client, for the calls that every subject has: load, sample, unload.

/** @type {any} */
let slm;

/** @param {{executor: string, model: string}} options */
export async function load({ executor, model }) {
  const { SLM2 } = await import(new URL("../../web/client.js", import.meta.url).href);
  slm = await SLM2.load({ executor, model });
  const { adapter, memory, timings } = slm.info;
  return { executor: slm.info.executor, adapter, memory, timings };
}

/** A reply to nothing like the prompt comes first, so that the KV cache holds no more of it than the template's
 * beginning; `cached` tokens of the prompt are not computed again.
 * @param {{messages: {role: string, content: string}[], n_tokens: number}} request */
export async function sample({ messages, n_tokens: nTokens }) {
  await slm.chat([{ role: "system", content: "\u2603" }, { role: "user", content: "\u2603" }], { max_tokens: 1 }).result;
  const start = performance.now();
  const chat = slm.chat(messages, { temperature: 0, max_tokens: nTokens });
  const times = [];
  for await (const _ of chat) times.push([performance.now(), chat.nTokens]);
  const { stats, reason } = await chat.result;
  if (!times.length) throw new Error(`the reply has no text; it ended by ${reason}`);
  const [[first, firstCount], [last, lastCount]] = [times[0], times[times.length - 1]];
  return {
    prompt_tokens: stats.prompt_tokens,
    cached_tokens: stats.reused_tokens,
    ttft_ms: first - start,
    decode_ms: last - first,
    decode_tokens: lastCount - firstCount,
    reason,
    stats,
  };
}

export async function unload() {
  slm.dispose();
}
