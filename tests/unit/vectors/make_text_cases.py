"""Make text_cases.json: texts on which tokenizers were reported to fail.

    python make_text_cases.py CASES_JSON

CASES_JSON is a list of {"id", "area", "source", "fault", "input", …}, collected from public issue trackers;
`source` names the reports. The ids there are another model's, so only the texts are kept: the tests compare
them with an oracle for the model at hand.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any


def texts_of(case: dict[str, Any]) -> list[str]:
    """Every text that the case gives to a tokenizer."""
    given = case["input"]
    messages = [message["content"] for message in given.get("messages", ())]
    return [text for text in (given.get("text"), given.get("content"), *messages) if isinstance(text, str)]


def main(source: Path) -> None:
    data = source.read_bytes()
    cases = [
        {"id": case["id"], "source": case["source"], "fault": case["fault"], "texts": texts}
        for case in json.loads(data)
        if case["area"] in ("tokenizer", "trust-boundary") and (texts := texts_of(case))
    ]
    made = {"made_by": Path(__file__).name, "source_sha256": hashlib.sha256(data).hexdigest(), "cases": cases}
    text = json.dumps(made, ensure_ascii=True, indent=1) + "\n"
    Path(__file__).with_name("text_cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
