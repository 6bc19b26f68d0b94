"""Python values as JavaScript ones, JavaScript errors as ours."""

from __future__ import annotations

from typing import Any

import js
import numpy as np
from pyodide.ffi import JsException, jsnull, to_js

from slm2_web.errors import CODES, AssetError, DeviceError
from slm2_web.forward2.exactmath import F32


def to_object(value: Any) -> Any:
    """A Python value as a plain JavaScript one; dicts become objects, bytes typed arrays, None null."""
    return to_js(_with_nulls(value), dict_converter=js.Object.fromEntries)


def _with_nulls(value: Any) -> Any:
    """None by itself would become undefined."""
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return jsnull if value is None else value


def to_f32(values: Any) -> F32:
    """A Float32Array as f32[length]."""
    result = np.empty(values.length, np.float32)
    values.assign_to(result)
    return result


def own_error(error: JsException, otherwise: str) -> AssetError | DeviceError:
    """The error that our JavaScript threw, by its `code`; anything else gets the code `otherwise`."""
    code: Any = getattr(error, "code", None)
    if code in CODES:
        detail = getattr(error, "detail", None)
        for kind in (AssetError, DeviceError):
            if code.startswith(kind.prefixes):
                return kind(code, error.message, detail.to_py() if detail else None)
    return DeviceError(otherwise, error.message)
