// The parity suite in this browser: every stage on one executor, what each came to, and whether that is the
// baseline's. No page is needed for it; parity.js shows it, and `slm2-web parity` reads it.
//
// Theory of operation. web/parity-baseline.json has, of each model and stage, what CPython came to: digests by size,
// and a mark for each record. A model is loaded and its stages are run by the worker; the stage `boundary` is run
// here. Where a digest is another one, the marks tell which record differs first, and that record is asked for.
// A program that plays a GPU takes a minute where a GPU takes a second: there the stages that compute are run in
// the smallest size, and a note says so.

import { expectedOf, runCase } from "./parity-boundary.js";
import { agreed, Opinion } from "./parity-opinion.js";
import { digestOf, firstDifference, markOf } from "./parity-records.js";
import { Cancelled, SLM2 } from "./client.js";
import { AssetError, InputError, PARITY_SIZES, Slm2Error } from "../worker/protocol.js";
import { fetchSite } from "../worker/site.js";

/** @typedef {import("./client.js").ParityStage} ParityStage */
/** @typedef {import("./client.js").ParitySize} Size */
/** @typedef {import("./client.js").Progress} LoadProgress */
/** @typedef {Awaited<ReturnType<typeof SLM2.load>>} Slm */
/** @typedef {import("../worker/site.js").Site} Site */
/** @typedef {"webgpu" | "wasm"} CellExecutor */
/** @typedef {{vectors: number, digest: string}} Sum */
/** Marks are of the largest size. @typedef {{digests: Record<Size, string>, vectors: Record<Size, number>, marks: string}} Base */
/** Of the stage `regex`. @typedef {Base & {pattern: string}} OpinionBase */
/** Stages of one model. `opinion`: what the second opinion is on, where the site has one. `suffix` makes a stage's name one of the whole suite.
 * @typedef {{model: string, suffix: string, stages: Map<ParityStage, Base>,
 *   opinion: OpinionBase | null}} Part */
/** @typedef {{index: number, input: any, expected: any, found: any}} Difference */
/** @typedef {{name: string, size: Size, vectors: number, digest: string | null, seconds: number,
 *   verdict: "equal" | "differs" | "failed", difference: Difference | null,
 *   failure: {code: string, message: string} | null}} StageRun */
/** A cell of a certificate: docs/certificate.md.
 * @typedef {{browser: {name: string, version: string, user_agent: string}, executor: string, isolated: boolean,
 *   threads: number | null, adapter: string | null, versions: Record<string, string>, seconds: number,
 *   verdict: string, absence: string | null, failure: {code: string, message: string} | null, notes: string[],
 *   stages: StageRun[]}} Cell */
/** @typedef {{
 *   executor: CellExecutor, size: Size, stages?: string[] | null, signal?: AbortSignal,
 *   browser?: {name: string, version: string},
 *   onLoad?: (model: string, progress: LoadProgress) => void,
 *   onProgress?: (stage: string, done: number, total: number) => void,
 *   onStage?: (run: StageRun) => void,
 * }} CellOptions */

const ROOT = new URL("../", import.meta.url);
/** Stages that a device computes; the others are the same on each. @type {readonly string[]} */
const COMPUTED = ["forward", "chat"];
const BOUNDARY = "boundary";
// Its texts are those of the stage `tokenizer`.
const REGEX = "regex";
/** @type {Size} */
const SOFTWARE_SIZE = "quick";
const SOFTWARE = /swiftshader|llvmpipe|lavapipe|basic render/i;

/** What this browser has: which executors can be run, and why not the others. */
export async function facts() {
  const shared = typeof SharedArrayBuffer === "function";
  const adapter = await adapterName();
  return {
    isolated: globalThis.crossOriginIsolated === true,
    shared,
    webgpu: adapter !== null,
    adapter,
    software: adapter !== null && SOFTWARE.test(adapter),
    webgpu_absence: adapter !== null ? null : "gpu" in navigator
      ? "this browser has WebGPU, and no adapter for it"
      : "this browser has no WebGPU (navigator.gpu is undefined)",
    user_agent: navigator.userAgent,
    threads: navigator.hardwareConcurrency ?? null,
  };
}

/** The name of the WebGPU adapter, or null. */
async function adapterName() {
  const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) return null;
  const { vendor, architecture, description } = adapter.info ?? {};
  const words = [...new Set([vendor, architecture, description].filter(Boolean))];
  return words.join(" ") || "unnamed adapter";
}

/** The suite as this site has it: its parts, the cases of `boundary`, and what CPython came to.
 * Rejects with AssetError. */
export async function openSuite() {
  const [site, baseline, boundary, opinion] = await Promise.all([
    fetchSite(ROOT),
    fetchJson("web/parity-baseline.json"),
    fetchJson("web/parity-boundary.json"),
    fetchJson("web/parity-opinion.json"),
  ]);
  const hasOpinion = Object.keys(site.files).some((path) => /\/regex-[^/]*\.whl$/.test(path));
  const parts = partsOf(baseline, hasOpinion ? opinion.models : {}, site);
  const records = boundary.cases.map(expectedOf);
  const { digest, marks } = await digestOf(records);
  return {
    site,
    implementation: { name: "CPython", suite: String(baseline.suite) },
    parts,
    boundary: { model: boundary.model, cases: boundary.cases, records, vectors: records.length, digest, marks },
    /** Names of all stages, in their order. */
    names: [...parts.flatMap(namesOf), BOUNDARY],
  };
}

/** @param {string} path */
async function fetchJson(path) {
  const url = new URL(path, ROOT);
  const response = await fetch(url, { cache: "no-cache" }).catch(() => null);
  if (!response?.ok) throw new AssetError("asset.unreachable", `${url}: status ${response?.status ?? "none"}`);
  return response.json();
}

/** @typedef {Awaited<ReturnType<typeof openSuite>>} Suite */

/** @param {Base} base @param {Size} size @returns {Sum} */
const sumOf = ({ digests, vectors }, size) => ({ digest: digests[size], vectors: vectors[size] });

/** @param {Part} part @returns {string[]} */
const namesOf = ({ stages, suffix, opinion }) =>
  [...stages.keys(), ...(opinion ? [REGEX] : [])].map((name) => name + suffix);

/** @param {any} baseline @param {Record<string, OpinionBase>} opinions by model @param {Site} site @returns {Part[]} */
function partsOf(baseline, opinions, site) {
  const has = (/** @type {string} */ model) => `models/${model}/manifest.json` in site.files;
  const parts = Object.entries(baseline.models).map(([model, { stages }], i) => ({
    model,
    suffix: i === 0 ? "" : `.${model.replace(/^parity-/, "")}`,
    stages: new Map(/** @type {[ParityStage, Base][]} */ (Object.entries(stages))),
    opinion: opinions[model] ?? null,
  }));
  return parts.filter(({ model }) => has(model));
}

/** What the baseline has for a stage, by its name in the whole suite.
 * @param {Suite} suite @param {string} name @param {Size} size @returns {Sum | null} */
export function expectedSum(suite, name, size) {
  if (name === BOUNDARY) return suite.boundary;
  for (const { suffix, stages, opinion } of suite.parts) {
    for (const [stage, base] of stages) if (stage + suffix === name) return sumOf(base, size);
    if (opinion && name === REGEX + suffix) return sumOf(opinion, size);
  }
  return null;
}

/** Runs the stages and gives the cell of a certificate. Rejects only with Cancelled, and for wrong options.
 * @param {Suite} suite @param {CellOptions} options @returns {Promise<Cell>} */
export async function runCell(suite, options) {
  const { executor, size, signal, browser } = options;
  if (!PARITY_SIZES.includes(size)) throw badOption("size", size, PARITY_SIZES);
  if (!["webgpu", "wasm"].includes(executor)) throw badOption("executor", executor, ["webgpu", "wasm"]);
  const wanted = options.stages ?? suite.names;
  const other = wanted.find((name) => !suite.names.includes(name));
  if (other !== undefined) throw badOption("stages", other, suite.names);
  const start = performance.now();
  const here = await facts();
  const run = new Run(suite, { ...options, stages: wanted }, here.software && executor === "webgpu");
  /** @type {Cell["failure"]} */
  let failure = null;
  try {
    await run.all();
  } catch (error) {
    if (error instanceof Cancelled || signal?.aborted) throw error;
    failure = failureOf(error);
  } finally {
    await run.end();
  }
  const info = run.info ?? {};
  const verdicts = new Set(run.done.map(({ verdict }) => verdict));
  const failed = failure !== null || verdicts.has("failed") || verdicts.size === 0;
  return {
    browser: { ...(browser ?? browserName(navigator.userAgent)), user_agent: navigator.userAgent },
    executor: executor === "wasm" && !here.shared ? "wasm-plain" : executor,
    isolated: here.isolated,
    threads: threadsOf(info.adapter, executor),
    adapter: info.adapter ?? null,
    versions: await versionsOf(suite.site),
    seconds: secondsSince(start),
    verdict: verdicts.has("differs") ? "differs" : failed ? "failed" : "equal",
    absence: null,
    failure,
    notes: run.notes,
    stages: run.done,
  };
}

/** What this browser makes of inputs of one stage, by its name in the whole suite; for who wants to know why. */
export class Outputs {
  /** @type {Slm | null} */
  #slm = null;
  #part;
  #stage;
  #executor;

  /** @param {Suite} suite @param {string} name @param {CellExecutor} executor */
  constructor(suite, name, executor) {
    const part = suite.parts.find(({ suffix, stages }) => [...stages.keys()].some((stage) => stage + suffix === name));
    if (!part) throw badOption("stage", name, suite.names);
    this.#part = part;
    this.#stage = /** @type {ParityStage} */ (part.suffix ? name.slice(0, -part.suffix.length) : name);
    this.#executor = executor;
  }

  /** @param {any} input @returns {Promise<any>} */
  async of(input) {
    this.#slm ??= await SLM2.load({ model: this.#part.model, executor: this.#executor });
    return this.#slm.parityOutput(this.#stage, input);
  }

  /** Ends the model. */
  async end() {
    await this.#slm?.dispose();
    this.#slm = null;
  }
}

/** One run of the suite on one executor. */
class Run {
  /** @type {StageRun[]} */
  done = [];
  /** @type {string[]} */
  notes = [];
  /** Of the model that was loaded first. @type {Record<string, any> | null} */
  info = null;
  #suite;
  #options;
  #isSoftware;
  /** @type {Slm | null} */
  #slm = null;
  /** @type {import("./parity-faults.js").FaultyPage | null} */
  #page = null;
  /** @type {Opinion | null} */
  #opinion = null;

  /** @param {Suite} suite @param {CellOptions & {stages: string[]}} options @param {boolean} isSoftware */
  constructor(suite, options, isSoftware) {
    this.#suite = suite;
    this.#options = options;
    this.#isSoftware = isSoftware;
    if (isSoftware && options.size !== SOFTWARE_SIZE) {
      this.notes.push(
        `The adapter is a program, not a GPU: stages that compute (${COMPUTED.join(", ")}) ran in size ` +
          `${SOFTWARE_SIZE} instead of ${options.size}.`,
      );
    }
  }

  /** All stages that are wanted, model by model; `boundary` with the model that it is about. */
  async all() {
    const { stages: wanted } = this.#options;
    const { boundary, parts } = this.#suite;
    for (const part of parts) {
      const stages = [...part.stages].filter(([stage]) => wanted.includes(stage + part.suffix));
      const hasBoundary = part.model === boundary.model && wanted.includes(BOUNDARY);
      const hasOpinion = part.opinion !== null && wanted.includes(REGEX + part.suffix);
      if (stages.length === 0 && !hasBoundary && !hasOpinion) continue;
      for (const [stage, base] of stages) await this.#stage(part, stage, base);
      if (hasOpinion) await this.#second(part, /** @type {OpinionBase} */ (part.opinion));
      if (hasBoundary) await this.#boundary(part);
      await this.#drop();
    }
    if (wanted.includes(BOUNDARY) && !parts.some(({ model }) => model === boundary.model)) {
      this.notes.push(`The stage ${BOUNDARY} is about the model ${boundary.model}, which this site does not have.`);
    }
  }

  /** Ends whatever still runs. */
  async end() {
    this.#page?.end();
    this.#opinion?.end();
    await this.#drop();
  }

  async #drop() {
    await this.#slm?.dispose();
    this.#slm = null;
  }

  /** @param {string} model @returns {import("./client.js").LoadOptions} */
  #loadOptions(model) {
    const { executor, signal, onLoad } = this.#options;
    return { model, executor, signal, onProgress: (progress) => onLoad?.(model, progress) };
  }

  /** The model of a part, loaded; again when it has died. @param {string} model */
  async #loaded(model) {
    if (this.#slm && !this.#slm.failure) return this.#slm;
    this.#slm = await SLM2.load(this.#loadOptions(model));
    this.info ??= this.#slm.info;
    return this.#slm;
  }

  /** @param {Part} part @param {ParityStage} stage @param {Base} base */
  async #stage({ model, suffix }, stage, base) {
    const { signal, onProgress } = this.#options;
    const name = stage + suffix;
    const slm = await this.#loaded(model);
    const size = this.#isSoftware && COMPUTED.includes(stage) ? SOFTWARE_SIZE : this.#options.size;
    const start = performance.now();
    try {
      const progress = (/** @type {{done: number, total: number}} */ { done, total }) => onProgress?.(name, done, total);
      const { stages } = await slm.parity({ stages: [stage], size, signal, onProgress: progress });
      const [{ vectors, digest, marks, seconds }] = stages;
      const sum = sumOf(base, size);
      const isEqual = digest === sum.digest && vectors === sum.vectors;
      const difference = isEqual ? null : await this.#difference(slm, model, stage, size, marks, base, vectors);
      this.#end({
        name,
        size,
        vectors,
        digest,
        seconds,
        verdict: isEqual ? "equal" : "differs",
        difference,
        failure: null,
      });
    } catch (error) {
      if (error instanceof Cancelled || signal?.aborted) throw error;
      this.#end(failed(name, size, secondsSince(start), error));
    }
  }

  /** The first record that is not the baseline's, or null when no record differs.
   * @param {Slm} slm @param {string} model @param {ParityStage} stage @param {Size} size @param {string} marks
   * @param {Base} base @param {number} vectors @returns {Promise<Difference | null>} */
  async #difference(slm, model, stage, size, marks, base, vectors) {
    const expectedMarks = base.marks.slice(0, marks.length);
    const index = firstDifference(marks, expectedMarks);
    if (index < 0 || index >= vectors) return null;
    const { input, output: found } = await slm.parityRecord(stage, index, size);
    const mark = base.marks.slice(index * 8, index * 8 + 8);
    const expected = (await this.#reference(model, stage, size, index, mark)) ?? {
      mark,
      note: "only the mark is known here; slm2-web parity computes the record",
    };
    return { index, input, expected, found };
  }

  /** What the reference executor makes of a record here, if that is what the baseline has; else null.
   * @param {string} model @param {ParityStage} stage @param {Size} size @param {number} index
   * @param {string} mark @returns {Promise<any>} */
  async #reference(model, stage, size, index, mark) {
    if (!COMPUTED.includes(stage)) return null;
    const { signal } = this.#options;
    const reference = await SLM2.load({ model, executor: "reference", signal });
    try {
      const record = await reference.parityRecord(stage, index, size);
      return (await markOf(record)) === mark ? record.output : null;
    } finally {
      await reference.dispose();
    }
  }

  /** The stage `regex`: our pieces and another library's.
   * @param {Part} part @param {OpinionBase} base */
  async #second({ model, suffix, stages }, base) {
    const { size, signal, onProgress } = this.#options;
    const name = REGEX + suffix;
    const start = performance.now();
    const total = stages.get("tokenizer")?.vectors[size] ?? 0;
    const slm = await this.#loaded(model);
    try {
      if (!this.#opinion) {
        this.#opinion = new Opinion(ROOT);
        await this.#opinion.load(ROOT, this.#suite.site.version);
      }
      /** @type {any[]} */
      const records = [];
      /** @type {any[]} */
      const expected = [];
      let unknown = 0;
      for (let i = 0; i < total; i++) {
        if (signal?.aborted) throw new Cancelled("cancelled", `parity: cancelled in ${name}`);
        if (i % 16 === 0) onProgress?.(name, i, total);
        const { pieces } = (await slm.parityRecord("tokenizer", i, size)).output;
        if (!pieces) continue;
        const record = agreed(pieces, base.pattern, records.length);
        const theirs = await this.#opinion.split(base.pattern, record.input.text);
        unknown += Number(theirs === null);
        const agrees = theirs === null || theirs.join("\0") === pieces.join("\0");
        records.push(agrees ? record : { ...record, output: { pieces, regex: theirs } });
        expected.push(record);
      }
      onProgress?.(name, total, total);
      const { digest, marks } = await digestOf(records);
      const sum = sumOf(base, size);
      const isEqual = digest === sum.digest && records.length === sum.vectors;
      const index = isEqual ? -1 : firstDifference(marks, base.marks.slice(0, marks.length));
      const wrong = index < 0 ? null : records[index];
      this.notes.push(
        `${name}: ${unknown} of ${records.length} texts were not put to it: they have characters that Unicode may have ` +
          "assigned since.",
      );
      this.#end({
        ...{ name, size, vectors: records.length, digest, seconds: secondsSince(start), failure: null },
        verdict: isEqual ? "equal" : "differs",
        difference: wrong && { index, input: wrong.input, expected: expected[index].output, found: wrong.output },
      });
    } catch (error) {
      if (error instanceof Cancelled || signal?.aborted) throw error;
      this.#end(failed(name, size, secondsSince(start), error));
    }
  }

  /** @param {Part} part */
  async #boundary({ model }) {
    const { signal, onProgress, size } = this.#options;
    const { boundary, site } = this.#suite;
    const start = performance.now();
    const loadOptions = this.#loadOptions(model);
    const slm = await this.#loaded(model);
    /** @type {import("./parity-boundary.js").Context} */
    const context = {
      ...{ slm, loadOptions, site: site.version, root: ROOT },
      ...{ page: null, isPageReady: false, cachedBytes: 0 },
    };
    try {
      const records = [];
      for (const [i, each] of boundary.cases.entries()) {
        if (signal?.aborted) throw new Cancelled("cancelled", `parity: cancelled in ${BOUNDARY}`);
        onProgress?.(BOUNDARY, i, boundary.vectors);
        records.push(await runCase(context, each, i));
        [this.#slm, this.#page] = [context.slm, context.page];
      }
      onProgress?.(BOUNDARY, records.length, boundary.vectors);
      const { digest, marks } = await digestOf(records);
      const index = digest === boundary.digest ? -1 : firstDifference(marks, boundary.marks);
      const wrong = index < 0 ? null : records[index];
      if (context.cachedBytes > 0) {
        this.notes.push(`Loaded again, the model came from this browser's storage: ${context.cachedBytes} bytes.`);
      } else {
        this.notes.push("Loaded again, the model came from the site: this browser had not stored it.");
      }
      this.#end({
        name: BOUNDARY,
        size,
        vectors: records.length,
        digest,
        seconds: secondsSince(start),
        verdict: digest === boundary.digest ? "equal" : "differs",
        difference: wrong && { index, input: wrong.input, expected: boundary.records[index].output, found: wrong.output },
        failure: null,
      });
    } catch (error) {
      if (error instanceof Cancelled || signal?.aborted) throw error;
      this.#end(failed(BOUNDARY, size, secondsSince(start), error));
    } finally {
      [this.#slm, this.#page] = [context.slm, context.page]; // a case that failed may have loaded another one
      context.page?.end();
    }
  }

  /** @param {StageRun} run */
  #end(run) {
    this.done.push(run);
    this.#options.onStage?.(run);
  }
}

/** @param {string} name @param {Size} size @param {number} seconds @param {unknown} error @returns {StageRun} */
const failed = (name, size, seconds, error) => ({
  ...{ name, size, vectors: 0, digest: null, seconds, verdict: "failed", difference: null },
  failure: failureOf(error),
});

/** @param {unknown} error */
const failureOf = (error) =>
  error instanceof Slm2Error
    ? { code: error.code, message: error.message.slice(0, 2000) }
    : { code: "page", message: String(error).slice(0, 2000) };

/** @param {string} name @param {unknown} found @param {readonly string[]} allowed */
function badOption(name, found, allowed) {
  const text = `${name}: found ${String(found).slice(0, 80)}; allowed: ${allowed.join(" | ")}`;
  return new InputError("input.params", text, { field: name, found: String(found).slice(0, 80), allowed });
}

/** Milliseconds are enough. @param {number} start */
const secondsSince = (start) => Math.round(performance.now() - start) / 1000;

/** Of "SIMD, 2 threads". @param {string | undefined} adapter @param {string} executor */
function threadsOf(adapter, executor) {
  const found = /(\d+) threads?$/.exec(adapter ?? "");
  return executor === "wasm" && found ? Number(found[1]) : null;
}

/** The versions of what computes beside us, from the site's files. @param {Site} site
 * @returns {Promise<Record<string, string>>} */
async function versionsOf(site) {
  const names = Object.keys(site.files).join("\n");
  const lock = await fetchJson(`${site.runtime}/pyodide-lock.json`).catch(() => null);
  const found = {
    pyodide: /pyodide-([\d.]+\d)$/.exec(site.runtime)?.[1],
    python: lock?.info?.python,
    numpy: /\/numpy-([\d.]+\d)-[^/]*\.whl/.exec(names)?.[1],
    slm2_web: /\/slm2_web-([^-/]+)-[^/]*\.whl/.exec(names)?.[1],
  };
  return Object.fromEntries(Object.entries(found).filter(([, version]) => typeof version === "string"));
}

/** A browser's name and version, as far as its user agent tells. @param {string} agent */
export function browserName(agent) {
  /** @type {[string, RegExp][]} */
  const known = [
    ["firefox", /Firefox\/([\d.]+)/],
    ["chromium", /(?:Chrome|Chromium)\/([\d.]+)/],
    ["webkit", /Version\/([\d.]+).*Safari/],
    ["webkit", /AppleWebKit\/([\d.]+)/],
  ];
  for (const [name, pattern] of known) {
    const match = pattern.exec(agent);
    if (match) return { name, version: match[1] };
  }
  return { name: "unknown", version: "" };
}

/** The certificate of one cell: docs/certificate.md. @param {Suite} suite @param {Size} size @param {Cell} cell */
export function certificateOf(suite, size, cell) {
  const { site, implementation, boundary, parts } = suite;
  /** @type {{name: string, size: Size, vectors: number, digest: string}[]} */
  const stages = [];
  const add = (/** @type {string} */ name, /** @type {Size} */ each, /** @type {Sum} */ { vectors, digest }) =>
    stages.push({ name, size: each, vectors, digest });
  const sizes = new Set([size, ...cell.stages.map((stage) => stage.size)]);
  for (const { suffix, stages: bases, opinion } of parts) {
    if (opinion) for (const each of sizes) add(REGEX + suffix, each, sumOf(opinion, each));
    for (const [stage, base] of bases) for (const each of sizes) add(stage + suffix, each, sumOf(base, each));
  }
  for (const each of sizes) add(BOUNDARY, each, boundary);
  return {
    format: "slm2-parity-certificate",
    version: 1,
    verdict: cell.verdict,
    made_at: new Date().toISOString().replace(/\.\d+Z$/, "Z"),
    made_by: { program: "parity.html", version: cell.versions.slm2_web ?? "", command: null },
    size,
    site: site.version,
    artifacts: artifactsOf(site),
    baseline: { implementation, stages },
    cells: [cell],
  };
}

/** The site's files that compute, by kind. @param {Site} site */
function artifactsOf({ files, runtime }) {
  /** @type {[string, RegExp][]} */
  const kinds = [
    ["model", /^models\//],
    ["wheel", /^wheels\//],
    ["kernel", /^worker\/(?:shaders|wasm)\/.*\.(?:wgsl|wasm)$/],
    ["runtime", new RegExp(`^${runtime.replaceAll(".", "\\.")}/`)],
  ];
  return kinds.flatMap(([kind, pattern]) =>
    Object.entries(files)
      .filter(([path]) => pattern.test(path))
      .map(([path, { bytes, sha256 }]) => ({ kind, path, bytes, sha256 })),
  );
}


