"""Stage `sampling`: logits and parameters to the kept set, the probabilities' bits and the id.

    {"logits": floats, "n_tokens", "prompt_ids", "generated_ids", "position": decimal digits,
     "allowed": null or ids, "params": {"temperature": float, "top_k", "top_p": float, "min_p": float,
     "repetition_penalty": float, "presence_penalty": float, "frequency_penalty": float, "banned_ids",
     "profile", "seed": decimal digits}}
    {"id", "kept_ids", "probs": floats} or {"error": code}

No model takes part. The cases are hard on purpose: ties at every boundary, both zeros, huge, tiny and
subnormal logits, counters and seeds at the ends of their 64 bits.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slm2_web.errors import DeviceError, InputError
from slm2_web.parity.canonical import Json, bits, floats, real
from slm2_web.parity.dice import Dice
from slm2_web.parity.subject import Stage, Subject
from slm2_web.sampling2.params import parse_params
from slm2_web.sampling2.sampler import sample

KINDS: Final = (
    "plain", "ties", "few values", "one leads", "flat", "plain", "huge", "tiny", "subnormal", "zeros",
    "plain", "infinite",
)  # fmt: skip
# Every so many records has as many logits as SmolLM2's vocabulary.
LARGE_EVERY: Final = 3000
LARGE_SIZE: Final = 49_152
_REALS: Final = (
    "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip


def make(subject: Subject, index: int) -> Json:
    """The input of a record."""
    dice = Dice(f"parity sampling {index}")
    size = (
        LARGE_SIZE
        if index % LARGE_EVERY == LARGE_EVERY - 1
        else 4 + dice.below(28 if dice.percent(70) else 188)
    )
    kind = KINDS[index % len(KINDS)]
    logits = _logits(kind, size, index, dice)
    n_tokens = size - dice.below(3) if size > 4 else size
    values: dict[str, float] = {
        "temperature": (0.0, 0.1, 0.6, 0.7, 1.0, 1.5, 4.0, 2.0**-18)[dice.below(8)],
        "top_p": (1.0, 1.0, 0.95, 0.9, 0.75, 0.5, 0.999, 1e-6)[dice.below(8)],
        "min_p": (0.0, 0.0, 0.0, 0.05, 0.1, 0.5, 1.0)[dice.below(7)],
        "repetition_penalty": (1.0, 1.0, 1.1, 1.5, 0.8)[dice.below(5)],
        "presence_penalty": (0.0, 0.0, 0.5, -0.5, 2.0)[dice.below(5)],
        "frequency_penalty": (0.0, 0.0, 0.25, -0.1, 1.0)[dice.below(5)],
    }
    params: dict[str, Any] = {name: bits(value) for name, value in values.items()}
    params["top_k"] = (0, 0, 0, 1, 3, 5, 20, 50, size, size + 7)[dice.below(10)]
    params["profile"] = "llama.cpp" if index % 2 else "transformers"
    params["banned_ids"] = [dice.below(n_tokens) for _ in range(dice.below(3))] if dice.percent(20) else []
    params["seed"] = str(dice.one((0, 1, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, dice.word())))
    position = dice.one((0, 1, 7, 4095, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, dice.word()))
    ids = [dice.below(size) for _ in range(dice.below(9))]
    cut = dice.below(len(ids) + 1)
    allowed = sorted({dice.below(n_tokens) for _ in range(1 + dice.below(8))}) if dice.percent(10) else None
    return {
        "logits": bits(logits),
        "n_tokens": n_tokens,
        "prompt_ids": ids[:cut],
        "generated_ids": ids[cut:],
        "position": str(position),
        "allowed": allowed,
        "params": params,
    }


async def run(subject: Subject, made: Json) -> Json:
    """The output of a record."""
    raw = {**made["params"], **{name: real(made["params"][name]) for name in _REALS}}
    mask: NDArray[np.bool_] | None = None
    if made["allowed"] is not None:
        mask = np.zeros(made["n_tokens"], np.bool_)
        mask[made["allowed"]] = True
    try:
        draw = sample(
            floats(made["logits"]),
            made["prompt_ids"],
            made["generated_ids"],
            parse_params({**raw, "seed": int(raw["seed"])}, {}),
            made["n_tokens"],
            position=int(made["position"]),
            allowed=mask,
        )
    except (InputError, DeviceError) as error:
        return {"error": error.code}
    return {"id": draw.id, "kept_ids": draw.kept_ids.tolist(), "probs": bits(draw.probs)}


def _logits(kind: str, size: int, index: int, dice: Dice) -> NDArray[np.float32]:
    """f32[size], by integers and exact operations alone."""
    words = _words(index, size)
    values = (words >> np.uint64(40)).astype(np.float32) / np.float32(2**20) - np.float32(8)
    at = dice.below(size)
    match kind:
        case "ties":
            values = np.floor(values)
        case "few values":
            values = np.floor(values / np.float32(8))
        case "one leads":
            values[at] = np.float32(40)
        case "flat":
            values[:] = np.float32(dice.below(7) - 3)
        case "huge":
            values = values * np.float32(2.0**100)
        case "tiny":
            values = values * np.float32(2.0**-120)
        case "subnormal":
            values = (words & np.uint64(4095)).astype(np.uint32).view(np.float32).copy()
        case "zeros":
            values = (words << np.uint64(63) >> np.uint64(32)).astype(np.uint32).view(np.float32).copy()
            values[at] = np.float32(dice.below(3))
        case "infinite":
            values[at] = dice.one((np.float32(np.inf), np.float32(-np.inf), np.float32(np.nan)))
    return values.astype(np.float32)


def _words(index: int, size: int) -> NDArray[np.uint64]:
    """u64[size]: splitmix64's finaliser of counters."""
    z = (np.arange(size, dtype=np.uint64) + np.uint64(index << 20)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


STAGE: Final = Stage("sampling", {"quick": 240, "reduced": 2400, "full": 12_000}, make, run)
