"""Make template_goldens.json.gz: what the publishers' templates and tokenizers make of the corpus of
conversations.

    PYTHONPATH=py:tests python tests/unit/vectors/make_template_goldens.py

For each conversation of tests/template_corpus.py the ids of the publisher's template, rendered by jinja2
and encoded by `tokenizers`; where a text of the conversation holds a control token, by the rule of trust.
Kept are eight digits of the ids' sha256 for each, and all ids of the first few.
"""

import gzip
import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slm2_web.compile.assets import Fetcher
from slm2_web.compile.models import MODELS
from template_corpus import COUNTS, conversations, digest
from template_models import qwen3_source, qwen25_data, qwen25_source
from template_oracles import TemplateOracle
from text_oracles import bpe_oracle, control_markers, gguf_metadata, json_oracle

ROOT = Path(__file__).resolve().parents[3]
N_FULL = 25


def oracles() -> Iterator[tuple[str, TemplateOracle]]:
    """The families and their oracles."""
    fetcher = Fetcher.from_environment(ROOT)
    qwen3: dict[str, Any] = json.loads(fetcher.fetch("qwen3-0.6b/tokenizer.json").read_bytes())
    for family, data, source in (
        ("qwen3", qwen3, qwen3_source()),
        ("qwen2.5", qwen25_data(qwen3), qwen25_source()),
    ):
        markers = {token["content"]: token["id"] for token in data["added_tokens"]}
        trusted, untrusted = json_oracle(data, added=True), json_oracle(data, added=False)
        yield family, TemplateOracle(source, trusted, untrusted, markers)
    gguf = gguf_metadata(fetcher.fetch(MODELS["smollm2-135m"].asset))
    trusted, untrusted = bpe_oracle(gguf, added=True), bpe_oracle(gguf, added=False)
    source = gguf["tokenizer.chat_template"]
    yield "chatml", TemplateOracle(source, trusted, untrusted, control_markers(gguf))


def main() -> None:
    families = {}
    for family, oracle in oracles():
        digests, n_by_trust = "", 0
        full: list[list[int]] = []
        for case in conversations(family):
            ids = oracle.ids_by_trust(*case)
            if oracle.is_smuggling(*case):
                n_by_trust += 1
            else:
                assert ids == oracle.ids(*case), case
            digests += digest(ids)
            if len(full) < N_FULL:
                full.append(ids)
        count = COUNTS[family]
        families[family] = {"count": count, "by_trust": n_by_trust, "full": full, "digests": digests}
        print(f"{family}: {count} conversations, {n_by_trust} of them by the rule of trust")
    versions = {name: importlib.metadata.version(name) for name in ("jinja2", "tokenizers")}
    made = {"made_by": Path(__file__).name, "versions": versions, "families": families}
    data = json.dumps(made, separators=(",", ":"), sort_keys=True).encode()
    path = Path(__file__).with_name("template_goldens.json.gz")
    path.write_bytes(gzip.compress(data, 9, mtime=0))


if __name__ == "__main__":
    main()
