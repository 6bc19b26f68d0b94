// The table of loading: a line for each stage, with what has really been done and, at the end, its time.

import { make, megabytes, seconds } from "./dom.js";
import { STAGES } from "./client.js";

/** @typedef {import("./client.js").Progress} Progress */
/** @typedef {Progress["stage"]} Stage */
/** @typedef {{line: HTMLElement, bar: HTMLProgressElement, figure: HTMLElement}} Line */

/** @type {Record<string, string>} */
const LABELS = {
  runtime: "Python",
  numpy: "NumPy",
  package: "Program",
  weights: "Model",
  self_test: "Self-test",
  upload: "Upload",
  compile: "Kernels",
};

/** The stages' table in a list element. */
export class StageTable {
  /** @type {Map<string, Line>} */
  #lines = new Map();

  /** @param {HTMLElement} list */
  constructor(list) {
    for (const stage of STAGES.filter((name) => name in LABELS)) {
      const bar = make("progress", { max: "1", value: "0", "aria-label": LABELS[stage] });
      const figure = make("span", { class: "figure" });
      const line = make("li", { "data-stage": stage }, make("span", {}, LABELS[stage]), bar, figure);
      this.#lines.set(stage, { line, bar, figure });
      list.append(line);
    }
    this.reset();
  }

  /** Nothing has begun. */
  reset() {
    for (const { line, bar, figure } of this.#lines.values()) {
      line.dataset.state = "waiting";
      bar.value = 0;
      figure.textContent = "";
    }
  }

  /** Shows a stage's progress. Gives its label when it has just begun, for who cannot see the table.
   * @param {Progress} progress @returns {string | null} */
  show({ stage, done, total, unit, cached }) {
    const parts = this.#lines.get(stage);
    if (!parts) return null;
    const { line, bar, figure } = parts;
    const begins = line.dataset.state === "waiting";
    const ended = total > 0 && done >= total;
    line.dataset.state = ended ? "done" : "running";
    if (ended || total > 1) {
      bar.max = total;
      bar.value = done;
    } else {
      bar.removeAttribute("value");
    }
    if (unit === "bytes") figure.textContent = bytesText(done, total, cached);
    else if (total > 1 && !ended) figure.textContent = `${done} of ${total}`;
    else if (ended) figure.textContent = "done";
    return begins ? LABELS[stage] : null;
  }

  /** Nothing goes on any more. */
  stop() {
    for (const { line, bar } of this.#lines.values()) {
      if (line.dataset.state === "running") line.dataset.state = "stopped";
      if (!bar.hasAttribute("value")) bar.value = 0;
    }
  }

  /** Everything has ended: each stage's time takes the place of, or follows, its figure. A stage that this
   * executor has no need of goes.
   * @param {Record<string, number>} timings by stage, `STAGE_ms` */
  finish(timings) {
    for (const [stage, { line, bar, figure }] of this.#lines) {
      line.dataset.state = "done";
      bar.max = bar.value = 1;
      const ms = timings[`${stage}_ms`];
      line.hidden = ms === undefined;
      if (ms === undefined) continue;
      const bytes = figure.textContent?.includes("MB") ? `${figure.textContent} · ` : "";
      figure.textContent = bytes + seconds(ms);
    }
  }
}

/** @param {number} done @param {number} total @param {number} cached */
function bytesText(done, total, cached) {
  const amount = done < total ? `${megabytes(done)} of ${megabytes(total)} MB` : `${megabytes(total)} MB`;
  if (cached === 0) return amount;
  return cached >= done ? `${amount} from cache` : `${amount}, ${megabytes(cached)} from cache`;
}
