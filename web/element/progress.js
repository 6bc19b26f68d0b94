// Progress of loading, in one bar: bytes while there are bytes to come, then nothing but that it goes on.

import { megabytes } from "../dom.js";
import { fill } from "./labels.js";

/** @typedef {import("../client.js").Progress} Progress */

export class LoadProgress {
  /** @type {Map<string, Progress>} */
  #stages = new Map();

  /** @param {Progress} progress */
  note(progress) {
    this.#stages.set(progress.stage, progress);
  }

  /** The share of all bytes that are here, from 0 to 1; null when none are to come. @returns {number | null} */
  get share() {
    const { done, total } = this.#bytes();
    return total > 0 && done < total ? done / total : null;
  }

  /** @param {Record<string, string>} labels */
  text(labels) {
    const { done, total } = this.#bytes();
    if (total === 0) return labels.loading;
    if (done >= total) return labels.starting;
    return `${labels.loading}: ${fill(labels.bytes, { done: megabytes(done), total: megabytes(total) })}`;
  }

  #bytes() {
    const stages = [...this.#stages.values()].filter(({ unit }) => unit === "bytes");
    const sum = (/** @type {"done" | "total"} */ what) => stages.reduce((all, stage) => all + stage[what], 0);
    return { done: sum("done"), total: sum("total") };
  }
}
