"""Makes sampling_goldens.json.gz: what transformers' processors keep, on torch's CPU in float32.

    python tests/unit/vectors/make_sampling_goldens.py

Needs torch and transformers. For each case of tests/sampling_cases.py: the first 24 bits of the sha256 of the
kept ids (little-endian int32, ascending), and for one case in 20 the probabilities too (bits of float32).

torch.sort leaves open how equal values are ordered, and orders them by the machine's vector instructions. So
each case is made twice: as it is (`kept_as_is`), and with torch.sort asked for the stable order, which is id
ascending (`kept`).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.generation import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from sampling_cases import N_CASES, Case, make_case  # noqa: E402

PROBS_EVERY = 20
PROBS_SIZE = 512


def kept_of(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that stay, i64[n] ascending, and their probabilities, f32[n].

    The processors come in the order of transformers' generate().
    """
    params = case.params
    ids = torch.tensor([case.prompt_ids + case.generated_ids])
    scores = torch.from_numpy(case.logits.copy())[None]
    if params["repetition_penalty"] != 1:
        scores = RepetitionPenaltyLogitsProcessor(params["repetition_penalty"])(ids, scores)
    if params["temperature"] != 1:
        scores = TemperatureLogitsWarper(params["temperature"])(ids, scores)
    if params["top_k"]:
        scores = TopKLogitsWarper(params["top_k"])(ids, scores)
    if params["top_p"] < 1:
        scores = TopPLogitsWarper(params["top_p"])(ids, scores)
    if params["min_p"]:
        scores = MinPLogitsWarper(params["min_p"])(ids, scores)
    # What was -inf before is as good as removed.
    ids = torch.nonzero(scores[0] > -torch.inf).flatten()
    return ids, torch.softmax(scores, -1)[0][ids]


def stable_sort(*args: Any, **named: Any) -> Any:
    """torch.sort in its stable order."""
    return SORT(*args, **named, stable=True)


SORT = torch.sort


def digest(ids: torch.Tensor) -> bytes:
    """24 bits that tell sets of ids apart."""
    return hashlib.sha256(ids.to(torch.int32).numpy().tobytes()).digest()[:3]


def main() -> None:
    torch.set_num_threads(1)
    as_is, kept, probs = b"", b"", {}
    for number in range(N_CASES):
        case = make_case(number)
        torch.sort = SORT
        as_is += digest(kept_of(case)[0])
        torch.sort = stable_sort
        ids, p = kept_of(case)
        kept += digest(ids)
        if number % PROBS_EVERY == 0 and case.logits.size <= PROBS_SIZE:
            probs[number] = base64.b64encode(p.numpy().tobytes()).decode()
    golden = {
        "made_by": "tests/unit/vectors/make_sampling_goldens.py",
        "with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "kept": base64.b64encode(kept).decode(),
        "kept_as_is": base64.b64encode(as_is).decode(),
        "probs": probs,
    }
    data = json.dumps(golden, separators=(",", ":")).encode()
    (HERE / "sampling_goldens.json.gz").write_bytes(gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
