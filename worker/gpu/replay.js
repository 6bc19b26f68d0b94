// Replay: runs recorded programs on a WebGPU device, one call from Python for a whole forward pass.
//
// Theory of operation. Python (bridge/webgpu.py) makes the device, the buffers, the pipelines and the bind groups,
// and hands them over once; what is left here is the loop that runs for each token, and the care for a device
// that fails. Values are read where they were mapped: a pass hands out a view of the staging buffer, which stays
// mapped until the next pass, and Python copies from it once. WebGPU tells of failures late and elsewhere: a bad submit changes nothing, and the readback gives
// what was there before. So every pass stands in error scopes of its own, and its values are given out only
// when these have been looked into. What goes wrong once is wrong for good: each later call throws it again.

import { DeviceError, ProtocolError } from "../protocol.js";

/** A number of workgroups, ceil(variable * mul / div), where variable 0 is 1, 1 is n_tokens, 2 is seq_len.
 * @typedef {[number, number, number]} Extent */
/** @typedef {{pipeline: GPUComputePipeline, group: GPUBindGroup, grid: [Extent, Extent, Extent]}} Command */

// Firefox looks for finished work every 100 ms, or when something is submitted, be it nothing: a submission every
// millisecond (every 4 later on, as browsers slow nested timers down) brings a pass's values when they are there.
// Elsewhere it would only cost time.
const NEEDS_POKES = navigator.userAgent.includes("Firefox/");
const POKE_MS = 1;

export class Replay {
  /** @type {Map<string, Command[]>} */
  #programs = new Map();
  /** @type {Map<string, GPUBuffer>} */
  #buffers = new Map();
  /** @type {{buffer: GPUBuffer, size: number} | null} */
  #staging = null;
  /** @type {DeviceError | null} */
  #failure = null;
  #disposed = false;
  #device;

  /** @param {GPUDevice} device */
  constructor(device) {
    this.#device = device;
    device.lost.then(({ message, reason }) => {
      if (!this.#disposed) this.#fail("device.lost", message || `the device was lost (${reason})`);
    });
    device.addEventListener("uncapturederror", ({ error }) => this.#note(error));
    this.#openScopes();
  }

  /** Waits for what was queued; throws what went wrong since the last check. */
  async check() {
    const errors = this.#closeScopes();
    this.#openScopes();
    await this.#device.queue.onSubmittedWorkDone();
    await this.#throwAny(errors);
  }

  /** A zeroed buffer under a name. @param {string} name @param {number} size in bytes @param {number} usage */
  createBuffer(name, size, usage) {
    this.#buffers.set(name, this.#device.createBuffer({ label: name, size, usage }));
  }

  /** @param {string} name @param {number} offset in bytes @param {Uint8Array<ArrayBuffer>} data */
  write(name, offset, data) {
    this.#device.queue.writeBuffer(this.buffer(name), offset, data);
  }

  /** @param {string} name @returns {GPUBuffer} */
  buffer(name) {
    const buffer = this.#buffers.get(name);
    if (!buffer) throw new ProtocolError("protocol.internal", `no buffer ${name}`);
    return buffer;
  }

  /** @param {string} name @param {Command[]} commands */
  record(name, commands) {
    this.#programs.set(name, commands);
  }

  /** Writes the step and the ids, runs programs in one submission, gives the first `size` bytes of a buffer.
   *
   * The values are there until the next pass. Throws DeviceError `device.lost`, `device.out_of_memory`.
   * @param {string[]} programs @param {[number, number, number, number]} step zero, n_tokens, pos, seq_len
   * @param {number[]} ids @param {string} read @param {number} size in bytes
   * @returns {Promise<Float32Array>} */
  async run(programs, step, ids, read, size) {
    if (this.#failure) throw this.#failure;
    this.#openScopes();
    const staging = this.#submit(programs, step, ids, read, size);
    const errors = this.#closeScopes();
    /** @type {unknown} */
    let unmapped = null;
    const mapped = staging.mapAsync(GPUMapMode.READ, 0, size).catch((error) => (unmapped = error));
    if (NEEDS_POKES) this.#poke(mapped);
    await mapped;
    await this.#throwAny(errors);
    if (unmapped) {
      // A lost device rejects the map a moment before it says that it is lost.
      await new Promise((resolve) => setTimeout(resolve, 0));
      throw this.#failure ?? this.#fail("device.lost", String(unmapped));
    }
    return new Float32Array(staging.getMappedRange(0, size));
  }

  /** Submits nothing now and then until `mapped` is settled. @param {Promise<unknown>} mapped */
  async #poke(mapped) {
    let waiting = true;
    mapped.then(() => (waiting = false));
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve, POKE_MS));
      if (!waiting) return;
      this.#device.queue.submit([]);
    }
  }

  /** @param {string[]} programs @param {[number, number, number, number]} step @param {number[]} ids
   * @param {string} read @param {number} size @returns {GPUBuffer} */
  #submit(programs, step, ids, read, size) {
    const device = this.#device;
    const staging = this.#stagingOf(size);
    staging.unmap();
    device.queue.writeBuffer(this.buffer("step"), 0, new Uint32Array(step));
    if (ids.length) device.queue.writeBuffer(this.buffer("ids"), 0, new Uint32Array(ids));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    const variables = [1, step[1], step[3]];
    const count = (/** @type {Extent} */ [variable, mul, div]) => Math.ceil((variables[variable] * mul) / div);
    for (const program of programs) {
      for (const { pipeline, group, grid } of this.#programs.get(program) ?? []) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(count(grid[0]), count(grid[1]), count(grid[2]));
      }
    }
    pass.end();
    encoder.copyBufferToBuffer(this.buffer(read), 0, staging, 0, size);
    device.queue.submit([encoder.finish()]);
    return staging;
  }

  /** @param {number} size in bytes */
  #stagingOf(size) {
    if (!this.#staging || this.#staging.size < size) {
      this.#staging?.buffer.destroy();
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      this.#staging = { buffer: this.#device.createBuffer({ label: "staging", size, usage }), size };
    }
    return this.#staging.buffer;
  }

  #openScopes() {
    this.#device.pushErrorScope("validation");
    this.#device.pushErrorScope("out-of-memory");
  }

  /** Closes the scopes that were opened last. @returns {Promise<(GPUError | null)[]>} */
  #closeScopes() {
    const scopes = [this.#device.popErrorScope(), this.#device.popErrorScope()];
    // A lost device has no scopes any more; `lost` tells the rest.
    return Promise.all(scopes).catch(() => []);
  }

  /** @param {Promise<(GPUError | null)[]>} errors */
  async #throwAny(errors) {
    for (const error of await errors) if (error) this.#note(error);
    if (this.#failure) throw this.#failure;
  }

  /** @param {GPUError} error */
  #note(error) {
    this.#fail(error instanceof GPUOutOfMemoryError ? "device.out_of_memory" : "device.limit", error.message);
  }

  /** @param {string} code @param {string} message */
  #fail(code, message) {
    this.#failure ??= new DeviceError(code, message);
    return this.#failure;
  }

  /** Destroys what has a name that begins with `prefix`. @param {string} prefix */
  free(prefix) {
    for (const name of [...this.#programs.keys()].filter((n) => n.startsWith(prefix))) this.#programs.delete(name);
    for (const [name, buffer] of [...this.#buffers].filter(([n]) => n.startsWith(prefix))) {
      buffer.destroy();
      this.#buffers.delete(name);
    }
  }

  dispose() {
    this.#disposed = true;
    this.free("");
    this.#staging?.buffer.destroy();
    this.#device.destroy();
  }
}
