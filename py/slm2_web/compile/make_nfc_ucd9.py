"""Write nfc_ucd9.json, the canonical properties of Unicode 9.0: `python -m slm2_web.compile.make_nfc_ucd9
PACKAGE`.

PACKAGE is npm's @unicode/unicode-9.0.0 (2.0.7), unpacked: its list of unassigned code points says which
characters Unicode 9.0 has. Their combining classes, decompositions and compositions are taken from Python's
`unicodedata`, which may be of any later version: for an assigned character these never change, by Unicode's
stability policy. So every Python that has Unicode 9.0 or later writes the same file. Needs Node.js, which
reads the package.

Source: https://www.unicode.org/policies/stability_policy.html (normalization stability).
"""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from itertools import groupby
from pathlib import Path

OUTPUT = Path(__file__).with_name("nfc_ucd9.json")
_SURROGATES = range(0xD800, 0xE000)
_HANGUL = range(0xAC00, 0xD7A4)  # by arithmetic


def main() -> None:
    """Write the file."""
    member = (Path(sys.argv[1]) / "General_Category" / "Unassigned" / "code-points.mjs").resolve()
    script = f"import list from {json.dumps(member.as_uri())}; console.log(JSON.stringify([...list]))"
    command = ["node", "--input-type=module", "--eval", script]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    unassigned = set(json.loads(output)).union(_SURROGATES)
    chars = [chr(code) for code in range(0x110000) if code not in unassigned]
    decompositions = {
        char: parts
        for char in chars
        if ord(char) not in _HANGUL and (parts := unicodedata.decomposition(char)) and parts[0] != "<"
    }
    data = {
        "unicode": "9.0.0",
        "source": "npm @unicode/unicode-9.0.0 2.0.7 (assigned characters); Python unicodedata (properties)",
        "combining_classes": _classes([char for char in chars if unicodedata.combining(char)]),
        "decompositions": {f"{ord(char):04X}": parts for char, parts in decompositions.items()},
        "never_composed": [
            f"{ord(char):04X}"
            for char, parts in decompositions.items()
            if " " in parts and unicodedata.normalize("NFC", char) != char
        ],
    }
    OUTPUT.write_text(json.dumps(data, indent=0) + "\n", "utf-8")


def _classes(chars: list[str]) -> dict[str, int]:
    """Combining class by range: characters that follow each other and have the same one."""
    classes = {}
    key = lambda pair: (ord(pair[1]) - pair[0], unicodedata.combining(pair[1]))  # noqa: E731
    for (_, combining), group in groupby(enumerate(chars), key):
        members = [ord(char) for _, char in group]
        classes[f"{members[0]:04X}-{members[-1]:04X}"] = combining
    return classes


if __name__ == "__main__":
    main()
