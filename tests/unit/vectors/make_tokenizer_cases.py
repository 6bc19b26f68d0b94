"""Make tokenizer_cases.json: reported faults of tokenizers, of the trust boundary and of streams, for Qwen3.

    python make_tokenizer_cases.py CASES_JSON

CASES_JSON is a list of {"id", "area", "source", "fault", "input", "expected", "oracle", …}, collected from
public issue trackers; `source` names the reports, `oracle` what made the expected ids. The cases of four
areas are kept as they are; those of `loader` are in loader_cases.json.
"""

import hashlib
import json
import sys
from pathlib import Path

AREAS = ("tokenizer", "trust-boundary", "utf8-stream")


def main(source: Path) -> None:
    data = source.read_bytes()
    cases = [case for case in json.loads(data) if case["area"] in AREAS]
    made = {"made_by": Path(__file__).name, "source_sha256": hashlib.sha256(data).hexdigest(), "cases": cases}
    text = json.dumps(made, ensure_ascii=True, indent=1) + "\n"
    Path(__file__).with_name("tokenizer_cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
