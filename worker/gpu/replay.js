/**
 * Replays recorded programs on a WebGPU device: one call from Python for a whole forward pass.
 *
 * Python (bridge/webgpu.py) makes the device, the buffers, the pipelines and the bind groups, and hands them over once;
 * what is left here is the loop that runs for each token, and the care for a device that fails.
 */

/**
 * A number of workgroups, ceil(variable * mul / div), where variable 0 is 1, 1 is n_tokens, 2 is seq_len.
 * @typedef {[number, number, number]} Extent
 * @typedef {{pipeline: GPUComputePipeline, group: GPUBindGroup, grid: [Extent, Extent, Extent]}} Command
 */

/** An error whose name is one of our error codes; bridge/ turns it into a DeviceError. */
class ReplayError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   */
  constructor(code, message) {
    super(message);
    this.name = code;
  }
}

export class Replay {
  /** @param {GPUDevice} device */
  constructor(device) {
    this.device = device;
    /** @type {Map<string, Command[]>} */
    this.programs = new Map();
    /** @type {Map<string, GPUBuffer>} */
    this.buffers = new Map();
    /** @type {{buffer: GPUBuffer, size: number} | null} */
    this.staging = null;
    /** @type {ReplayError | null} */
    this.failure = null;
    this.disposed = false;
    device.lost.then((info) => {
      if (!this.disposed) {
        this.failure = new ReplayError("device.lost", info.message || `the device was lost (${info.reason})`);
      }
    });
    device.addEventListener("uncapturederror", (event) => {
      const { error } = event;
      const code = error instanceof GPUOutOfMemoryError ? "device.out_of_memory" : "device.lost";
      this.failure ??= new ReplayError(code, error.message);
    });
    this.openScopes();
  }

  /** Errors of creation and upload arrive late: they are collected in scopes, and `check` looks into them. */
  openScopes() {
    this.device.pushErrorScope("validation");
    this.device.pushErrorScope("out-of-memory");
  }

  /** Waits for what was queued; throws what went wrong since the last check. */
  async check() {
    const memory = this.device.popErrorScope();
    const validation = this.device.popErrorScope();
    this.openScopes();
    const [noMemory, invalid] = await Promise.all([memory, validation]);
    if (noMemory) {
      this.failure ??= new ReplayError("device.out_of_memory", noMemory.message);
    }
    if (invalid) {
      this.failure ??= new ReplayError("device.limit", invalid.message);
    }
    await this.device.queue.onSubmittedWorkDone();
    this.throwFailure();
  }

  throwFailure() {
    if (this.failure) {
      throw this.failure;
    }
  }

  /**
   * A zeroed buffer under a name.
   * @param {string} name
   * @param {number} size in bytes
   * @param {number} usage
   */
  createBuffer(name, size, usage) {
    this.buffers.set(name, this.device.createBuffer({ label: name, size, usage }));
  }

  /**
   * @param {string} name
   * @param {number} offset in bytes
   * @param {Uint8Array<ArrayBuffer>} data
   */
  write(name, offset, data) {
    this.device.queue.writeBuffer(this.buffer(name), offset, data);
  }

  /** @param {string} name */
  buffer(name) {
    const buffer = this.buffers.get(name);
    if (!buffer) {
      throw new ReplayError("protocol.internal", `no buffer ${name}`);
    }
    return buffer;
  }

  /**
   * @param {string} name
   * @param {Command[]} commands
   */
  record(name, commands) {
    this.programs.set(name, commands);
  }

  /**
   * Writes the step and the ids, runs programs in one submission, gives the first `size` bytes of a buffer.
   * @param {string[]} programs
   * @param {[number, number, number, number]} step zero, n_tokens, pos, seq_len
   * @param {number[]} ids
   * @param {string} read
   * @param {number} size in bytes
   * @returns {Promise<Float32Array>}
   */
  async run(programs, step, ids, read, size) {
    this.throwFailure();
    const { device } = this;
    device.queue.writeBuffer(this.buffer("step"), 0, new Uint32Array(step));
    if (ids.length) {
      device.queue.writeBuffer(this.buffer("ids"), 0, new Uint32Array(ids));
    }
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    const variables = [1, step[1], step[3]];
    const count = (/** @type {Extent} */ [variable, mul, div]) => Math.ceil(((variables[variable] ?? 0) * mul) / div);
    for (const program of programs) {
      for (const { pipeline, group, grid } of this.programs.get(program) ?? []) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(count(grid[0]), count(grid[1]), count(grid[2]));
      }
    }
    pass.end();
    const staging = this.stagingOf(size);
    encoder.copyBufferToBuffer(this.buffer(read), 0, staging, 0, size);
    device.queue.submit([encoder.finish()]);
    try {
      await staging.mapAsync(GPUMapMode.READ, 0, size);
    } catch (error) {
      // The reason (a lost device, no memory) is reported on its own, a moment before or after.
      await new Promise((resolve) => setTimeout(resolve, 0));
      this.throwFailure();
      throw new ReplayError("device.lost", String(error));
    }
    const values = new Float32Array(staging.getMappedRange(0, size).slice(0));
    staging.unmap();
    this.throwFailure();
    return values;
  }

  /** @param {number} size in bytes */
  stagingOf(size) {
    if (!this.staging || this.staging.size < size) {
      this.staging?.buffer.destroy();
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      this.staging = { buffer: this.device.createBuffer({ label: "staging", size, usage }), size };
    }
    return this.staging.buffer;
  }

  /**
   * Destroys what has a name that begins with `prefix`.
   * @param {string} prefix
   */
  free(prefix) {
    for (const name of [...this.programs.keys()].filter((n) => n.startsWith(prefix))) {
      this.programs.delete(name);
    }
    for (const [name, buffer] of [...this.buffers].filter(([n]) => n.startsWith(prefix))) {
      buffer.destroy();
      this.buffers.delete(name);
    }
  }

  dispose() {
    this.disposed = true;
    this.free("");
    this.staging?.buffer.destroy();
    this.device.destroy();
  }
}
