// OpenAI: a loaded model behind the interface that OpenAI's own client has; docs/openai.md says where it differs.
//
//     const client = openai(await SLM2.load());
//     const completion = await client.chat.completions.create({ messages, temperature: 0 });
//     const stream = await client.chat.completions.create({ messages, stream: true }, { signal });
//     for await (const chunk of stream) reply.textContent += chunk.choices[0]?.delta.content ?? "";
//
// It is a translation and nothing else: one request becomes one call of `slm.chat`. What it doesn't know it refuses.

import { Cancelled } from "./client.js";
import { badInput, OPTIONS } from "./request.js";
import { decode } from "./text.js";

/** One's own or shared. @typedef {Pick<Awaited<ReturnType<typeof import("./client.js").SLM2.load>>, "chat" | "info">} Slm */
/** @typedef {import("./client.js").Result} Result */
/** @typedef {import("./client.js").ToolCall} ToolCall */
/** @typedef {import("./client.js").Message} Message */
/** @typedef {import("./client.js").PromptOptions} PromptOptions */
/** @typedef {{id: string, type: "function", function: {name: string, arguments: string}}} FunctionCall */
/** @typedef {{role: "assistant", content: string | null, refusal: null, reasoning_content?: string,
 *   tool_calls?: FunctionCall[]}} AssistantMessage */
/** @typedef {{token: string, bytes: number[], logprob: number}} TokenLogprob */
/** @typedef {{content: (TokenLogprob & {top_logprobs: TokenLogprob[]})[], refusal: null}} ChoiceLogprobs */
/** @typedef {"stop" | "length" | "tool_calls" | "invalid_utf8" | "dead_end"} FinishReason */
/** @typedef {{prompt_tokens: number, completion_tokens: number, total_tokens: number,
 *   prompt_tokens_details: {cached_tokens: number}}} Usage */
/** What of a choice is known only when it has ended. `malformed_tool_calls` is ours.
 * @typedef {{finish_reason: FinishReason, logprobs: ChoiceLogprobs | null,
 *   malformed_tool_calls?: {text: string, error: string}[]}} Ending */
/** @typedef {{id: string, object: "chat.completion", created: number, model: string, system_fingerprint: string,
 *   choices: ({index: 0, message: AssistantMessage} & Ending)[], usage: Usage, slm2: Result}} ChatCompletion */
/** @typedef {{role?: "assistant", content?: string, reasoning_content?: string,
 *   tool_calls?: ({index: number} & FunctionCall)[]}} Delta */
/** @typedef {{id: string, object: "chat.completion.chunk", created: number, model: string,
 *   system_fingerprint: string, choices: ({index: 0, delta: Delta} & (Ending | {finish_reason: null,
 *   logprobs: null}))[], usage?: Usage | null}} ChatCompletionChunk */
/** The chunks of a reply; `controller` aborts it, `slm2` is its result.
 * @typedef {AsyncGenerator<ChatCompletionChunk, void, void> & {controller: AbortController,
 *   slm2: Promise<Result>}} ChatCompletionStream */
/** @typedef {{
 *   messages: Message[], model?: string | null, stream?: boolean | null, n?: 1 | null,
 *   stream_options?: {include_usage?: boolean} | null,
 *   tools?: PromptOptions["tools"] | null, tool_choice?: "auto" | "none" | null,
 *   parallel_tool_calls?: true | null, response_format?: Record<string, any> | null,
 *   temperature?: number | null, top_p?: number | null, presence_penalty?: number | null,
 *   frequency_penalty?: number | null, seed?: number | null, stop?: string | string[] | null,
 *   max_tokens?: number | null, max_completion_tokens?: number | null, logprobs?: boolean | null,
 *   top_logprobs?: number | null, user?: string | null,
 *   top_k?: number, min_p?: number, repetition_penalty?: number, banned_ids?: number[],
 *   profile?: "transformers" | "llama.cpp", max_reasoning_tokens?: number, invalid_utf8?: "end" | "show",
 *   enable_thinking?: boolean, preserve_thinking?: boolean, local_state?: string,
 *   evidence?: PromptOptions["evidence"], budget_tokens?: number,
 * }} CompletionRequest */

/** @type {Record<Exclude<Result["reason"], "cancelled">, FinishReason>} */
const FINISH_REASONS = {
  stop_token: "stop",
  stop_string: "stop",
  max_tokens: "length",
  context_full: "length",
  invalid_utf8: "invalid_utf8",
  dead_end: "dead_end",
};
// Options of `slm.chat` that mean here what they mean there; the others have another name or type, or no place.
const SAME = OPTIONS.filter((name) => !["logprobs", "continue_from", "continue_ids"].includes(name));
const OWN = [
  "messages",
  "model",
  "stream",
  "stream_options",
  "n",
  "tool_choice",
  "parallel_tool_calls",
  "max_completion_tokens",
  "logprobs",
  "top_logprobs",
  "user",
];

/** The interface of OpenAI's client, as far as it goes, for this model. @param {Slm} slm */
export function openai(slm) {
  /** @overload @param {CompletionRequest & {stream: true}} request @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<ChatCompletionStream>} */
  /** @overload @param {CompletionRequest & {stream?: false | null}} request
   * @param {{signal?: AbortSignal}} [options] @returns {Promise<ChatCompletion>} */
  /** The reply to `request.messages`. One at a time, as `slm.chat`.
   *
   * Rejects with what `slm.chat` throws, and InputError `input.params` for what this interface doesn't do.
   * @param {CompletionRequest} request @param {{signal?: AbortSignal}} [options]
   * @returns {Promise<ChatCompletion | ChatCompletionStream>} */
  async function create(request, options = {}) {
    const { messages, stream, wantsUsage, ...rest } = translate(request, slm.info.model.name);
    if (typeof options !== "object" || options === null) throw refused("options", options, "an object");
    const { signal: given, ...unknown } = options;
    const signal = given ?? undefined;
    if (signal !== undefined && !(signal instanceof AbortSignal)) {
      throw refused("options.signal", signal, "an AbortSignal");
    }
    const [other] = Object.keys(unknown);
    if (other !== undefined) throw refused(`options.${other}`, /** @type {any} */ (unknown)[other], "signal");
    return stream ? streamed(slm, messages, rest, signal, wantsUsage) : whole(slm, messages, { ...rest, signal });
  }
  return { chat: { completions: { create } } };
}

/** @param {Slm} slm @param {Message[]} messages @param {Record<string, any>} options
 * @returns {Promise<ChatCompletion>} */
async function whole(slm, messages, options) {
  const head = headOf(slm, /** @type {const} */ ("chat.completion"));
  const result = await slm.chat(messages, options).result;
  if (result.reason === "cancelled") throw new Cancelled("cancelled", "create: cancelled by the page");
  const calls = functionCalls(result);
  /** @type {AssistantMessage} */
  const message = { role: "assistant", content: calls.length > 0 && result.text === "" ? null : result.text, refusal: null };
  if (result.reasoning_content !== null) message.reasoning_content = result.reasoning_content;
  if (calls.length > 0) message.tool_calls = calls;
  const choice = { index: /** @type {const} */ (0), message, ...endingOf(result) };
  return { ...head, choices: [choice], usage: usageOf(result), slm2: result };
}

/** @param {Slm} slm @param {Message[]} messages @param {Record<string, any>} options
 * @param {AbortSignal | undefined} signal @param {boolean} wantsUsage @returns {ChatCompletionStream} */
function streamed(slm, messages, options, signal, wantsUsage) {
  const head = headOf(slm, /** @type {const} */ ("chat.completion.chunk"));
  const controller = new AbortController();
  /** Thoughts come by a call, the answer by iteration. @type {string[]} */
  const thoughts = [];
  let wake = () => {};
  const chat = slm.chat(messages, {
    ...options,
    signal: signal ? AbortSignal.any([signal, controller.signal]) : controller.signal,
    onReasoning: (delta) => {
      thoughts.push(delta);
      wake();
    },
  });
  const usage = wantsUsage ? { usage: null } : {};
  /** @param {Delta} delta @param {Ending | {finish_reason: null, logprobs: null}} ending @returns {ChatCompletionChunk} */
  const chunk = (delta, ending = { finish_reason: null, logprobs: null }) => ({
    ...head,
    choices: [{ index: 0, delta, ...ending }],
    ...usage,
  });

  /** @returns {AsyncGenerator<ChatCompletionChunk, void, void>} */
  async function* chunks() {
    try {
      yield chunk({ role: "assistant", content: "" });
      for (let step = chat.next(); ; ) {
        /** @type {Promise<null>} */
        const thought = new Promise((resolve) => (wake = () => resolve(null)));
        const text = thoughts.length > 0 ? null : await Promise.race([step, thought]);
        while (thoughts.length > 0) yield chunk({ reasoning_content: thoughts.shift() ?? "" });
        if (text === null) continue;
        if (text.done) break;
        yield chunk({ content: text.value });
        step = chat.next();
      }
      const result = await chat.result;
      if (result.reason === "cancelled") return;
      const calls = functionCalls(result).map((call, index) => ({ index, ...call }));
      if (calls.length > 0) yield chunk({ tool_calls: calls });
      yield chunk({}, endingOf(result));
      if (wantsUsage) yield { ...head, choices: [], usage: usageOf(result) };
    } finally {
      await chat.return();
    }
  }
  const stream = chunks();
  const leave = stream.return.bind(stream);
  // A generator that was never asked ends without its `finally`; so the reply is ended first.
  const end = async () => {
    await chat.return();
    return leave();
  };
  return Object.assign(stream, { controller, slm2: chat.result, return: end });
}

/** What all chunks and a completion have. @template {string} T @param {Slm} slm @param {T} object */
const headOf = (slm, object) => ({
  id: `chatcmpl-${crypto.randomUUID()}`,
  object,
  created: Math.floor(Date.now() / 1000),
  model: /** @type {string} */ (slm.info.model.name),
  system_fingerprint: /** @type {string} */ (slm.info.site),
});

/** The request as `slm.chat` takes it. @param {CompletionRequest} request @param {string} name of the model */
function translate(request, name) {
  if (typeof request !== "object" || request === null) throw refused("request", request, "an object");
  /** @type {Record<string, any>} */
  const given = Object.fromEntries(Object.entries(request).filter(([, value]) => value !== undefined && value !== null));
  const unknown = Object.keys(given).find((key) => !SAME.includes(key) && !OWN.includes(key));
  if (unknown !== undefined) {
    throw refused(`request.${unknown}`, given[unknown], [...new Set([...OWN, ...SAME])].join(" | "));
  }
  const allowed = {
    model: [name],
    n: [1],
    stream: [true, false],
    logprobs: [true, false],
    parallel_tool_calls: [true],
    tool_choice: ["auto", "none"],
  };
  for (const [key, values] of Object.entries(allowed)) {
    if (key in given && !values.some((value) => value === given[key])) {
      throw refused(`request.${key}`, given[key], values.join(" | "));
    }
  }
  const stream = given.stream === true;
  const options = Object.fromEntries(Object.entries(given).filter(([key]) => SAME.includes(key)));
  if (given.tool_choice === "none") delete options.tools;
  if ("max_completion_tokens" in given) {
    if ("max_tokens" in given) throw refused("request.max_tokens", given.max_tokens, "max_completion_tokens alone");
    options.max_tokens = given.max_completion_tokens;
  }
  if ("top_logprobs" in given && given.logprobs !== true) {
    throw refused("request.top_logprobs", given.top_logprobs, "nothing without logprobs: true");
  }
  if (given.logprobs === true) options.logprobs = given.top_logprobs ?? 0;
  const messages = Array.isArray(given.messages) ? given.messages.map(withoutNulls) : given.messages;
  return { ...options, messages, stream, wantsUsage: wantsUsage(given.stream_options, stream) };
}

/** A message as it may come from a completion: what is null says nothing. @param {any} message */
const withoutNulls = (message) =>
  typeof message === "object" && message !== null && !Array.isArray(message)
    ? Object.fromEntries(Object.entries(message).filter(([key, value]) => key === "content" || value !== null))
    : message;

/** @param {any} options @param {boolean} stream @returns {boolean} */
function wantsUsage(options, stream) {
  if (options === undefined) return false;
  const place = "request.stream_options";
  if (!stream) throw refused(place, options, "nothing without stream: true");
  if (typeof options !== "object") throw refused(place, options, "an object");
  const { include_usage: wanted = false, ...rest } = options;
  const [other] = Object.keys(rest);
  if (other !== undefined) throw refused(`${place}.${other}`, rest[other], "include_usage");
  if (typeof wanted !== "boolean") throw refused(`${place}.include_usage`, wanted, "true | false");
  return wanted;
}

/** The calls that are calls. @param {Result} result @returns {FunctionCall[]} */
const functionCalls = ({ tool_calls: calls }) =>
  calls.flatMap((call) =>
    "name" in call
      ? [{ id: `call_${crypto.randomUUID()}`, type: "function", function: { name: call.name, arguments: call.arguments } }]
      : [],
  );

/** @param {Result} result @returns {Ending} */
function endingOf({ reason, tool_calls: calls, logprobs }) {
  const malformed = calls.flatMap((call) => ("name" in call ? [] : [call]));
  const finish = FINISH_REASONS[/** @type {keyof typeof FINISH_REASONS} */ (reason)];
  return {
    finish_reason: finish === "stop" && calls.length > malformed.length ? "tool_calls" : finish,
    logprobs: logprobs && {
      content: logprobs.map(({ top, ...token }) => ({ ...tokenLogprob(token), top_logprobs: top.map(tokenLogprob) })),
      refusal: null,
    },
    ...(malformed.length > 0 && { malformed_tool_calls: malformed }),
  };
}

/** @param {import("./client.js").Logprob} found @returns {TokenLogprob} */
const tokenLogprob = ({ bytes, logprob }) => ({ token: tokenText(bytes), bytes, logprob });

/** A token as text; one that holds only part of a character as `bytes:\xE2\x82`. @param {number[]} bytes */
function tokenText(bytes) {
  try {
    return decode(new Uint8Array(bytes));
  } catch {
    return `bytes:${bytes.map((byte) => `\\x${byte.toString(16).toUpperCase().padStart(2, "0")}`).join("")}`;
  }
}

/** @param {Result} result @returns {Usage} */
const usageOf = ({ stats: { prompt_tokens, generated_tokens, reused_tokens } }) => ({
  prompt_tokens,
  completion_tokens: generated_tokens,
  total_tokens: prompt_tokens + generated_tokens,
  prompt_tokens_details: { cached_tokens: reused_tokens },
});

/** @param {string} place @param {unknown} value @param {string} allowed */
const refused = (place, value, allowed) => badInput("input.params", place, value, allowed);
