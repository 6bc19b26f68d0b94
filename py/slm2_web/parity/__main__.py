"""`python -m slm2_web.parity`: write or check web/parity-baseline.json, or run the suite here.

    --write                      compute every vector of every model again, and write the file
    --check                      compute them, and compare
    --size quick|reduced|full    of --check; default: full
    --model NAME, --stage NAME   only these; may be given again. --write leaves the others as they are
    --executor NAME              reference (the default), wasm or wasm-plain

Exit status: 0 equal or written, 1 different, 2 bad arguments.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slm2_web.parity import baseline, suite

ROOT = Path(__file__).resolve().parents[3]
TARGET = ROOT / "web" / "parity-baseline.json"
MODELS = ("smollm2-135m", "parity-qwen3")


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m slm2_web.parity", description=(__doc__ or "").split("\n")[0]
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write the baseline")
    what.add_argument("--check", action="store_true", help="compare with the baseline")
    parser.add_argument("--size", choices=suite.SIZES, default="full")
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--stage", action="append", choices=list(suite.STAGES), help="default: all")
    parser.add_argument("--executor", choices=baseline.EXECUTORS, default="reference")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models", help="where the models lie")
    options = parser.parse_args(arguments)
    if options.write:
        return write(options)
    return check(options)


def write(options: argparse.Namespace) -> int:
    """0 when the file has been written."""
    models: dict[str, Any] = {}
    if options.model or options.stage:
        models = json.loads(TARGET.read_text("utf-8"))["models"]
    for name in options.model or MODELS:
        stages = options.stage or list(suite.STAGES)
        found = baseline.run(options.models / name, options.executor, "full", stages, say)
        models[name] = {**found, "stages": {**models.get(name, found)["stages"], **found["stages"]}}
    TARGET.write_text(json.dumps(baseline.baseline(models), indent=1) + "\n", "utf-8")
    return 0


def check(options: argparse.Namespace) -> int:
    """0 when what was computed is what the file says."""
    known: dict[str, Any] = json.loads(TARGET.read_text("utf-8"))
    lines = []
    if known["suite"] != suite.SUITE:
        lines.append(f"suite: expected {suite.SUITE}, found {known['suite']}")
    for name in options.model or MODELS:
        stages = options.stage or list(suite.STAGES)
        found = baseline.run(options.models / name, options.executor, options.size, stages, say)
        lines += [
            f"{name}: {each}" for each in baseline.differences(known["models"][name], found, options.size)
        ]
    for line in lines:
        print(line)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
