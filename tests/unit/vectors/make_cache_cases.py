"""Make cache_cases.json: reported faults of KV caches and of contexts that are full, with expected results.

    python make_cache_cases.py CASES_JSON

CASES_JSON is the collection that make_reply_cases.py describes. The ids are Qwen3's.
"""

import hashlib
import json
import sys
from pathlib import Path

IDS = ("KVC-02", "KVC-03", "CTX-03")


def main(source: Path) -> None:
    data = source.read_bytes()
    cases = [case for case in json.loads(data) if case["id"] in IDS]
    made = {"made_by": Path(__file__).name, "source_sha256": hashlib.sha256(data).hexdigest(), "cases": cases}
    text = json.dumps(made, ensure_ascii=False, indent=1) + "\n"
    Path(__file__).with_name("cache_cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
