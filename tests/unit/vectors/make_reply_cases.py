"""Make reply_cases.json: reported faults of samplers, streams, stop strings, thoughts, with expected results.

    python make_reply_cases.py CASES_JSON

CASES_JSON is a list of {"id", "area", "source", "fault", "input", "expected", "oracle"}, collected from
public issue trackers; `source` names the reports and `oracle` how the expectation was computed. This
script picks the areas that a reply is made of and keeps the cases as they are.
"""

import hashlib
import json
import sys
from pathlib import Path

AREAS = ("sampler", "stop-string", "utf8-stream", "reasoning-stream", "eos")


def main(source: Path) -> None:
    data = source.read_bytes()
    cases = [case for case in json.loads(data) if case["area"] in AREAS]
    made = {"made_by": Path(__file__).name, "source_sha256": hashlib.sha256(data).hexdigest(), "cases": cases}
    text = json.dumps(made, ensure_ascii=False, indent=1) + "\n"
    Path(__file__).with_name("reply_cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
