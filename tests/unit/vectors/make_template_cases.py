"""Make template_cases.json: conversations with what Qwen3-0.6B's template makes of them, and reported faults.

    python make_template_cases.py RENDERED_JSON REPORTS_JSON

RENDERED_JSON is {name: {"messages", "kwargs", "rendered"}}: what transformers 5.24.0 and 4.57.1 (jinja2
3.1.6) render with the template of revision c1899de289a04d12100db370d81485cdf75e47ca; a rendering that
begins with ERR is the error. REPORTS_JSON is a list of {"id", "area", "source", "fault", "input",
"expected"}, collected from public issue trackers; `source` names the reports.
"""

import hashlib
import json
import sys
from pathlib import Path


def main(rendered: Path, reports: Path) -> None:
    kept = ("id", "area", "source", "fault", "input", "expected")
    made = {
        "made_by": Path(__file__).name,
        "rendered_sha256": hashlib.sha256(rendered.read_bytes()).hexdigest(),
        "reports_sha256": hashlib.sha256(reports.read_bytes()).hexdigest(),
        "rendered": json.loads(rendered.read_bytes()),
        "reports": [
            {key: case[key] for key in kept}
            for case in json.loads(reports.read_bytes())
            if case["area"] == "template"
        ],
    }
    text = json.dumps(made, ensure_ascii=True, indent=1) + "\n"
    Path(__file__).with_name("template_cases.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
