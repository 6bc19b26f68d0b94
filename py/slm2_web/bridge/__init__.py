"""The browser's side of the package: the engine that the worker drives, and its two devices.

The only folder that imports `js` or `pyodide`. Every call that JavaScript makes here is answered with
`{ok: ...}` or `{error: {code, message, detail}}`: no Python exception crosses.

    engine.py   one model on one device, and the choice of the device
    webgpu.py   WebGPU through pyodide.ffi, for forward2/gpu.py
    wasm.py     the pool of wasm threads, for forward2/wasm.py
    kernel.py   the tokenizer's wasm kernel, for tokenizer2/kernel.py
    convert.py  Python values as JavaScript ones, JavaScript errors as ours
"""

from slm2_web.bridge.engine import Engine

__all__ = ["Engine"]
