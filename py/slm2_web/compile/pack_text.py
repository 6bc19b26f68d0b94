"""Pack what a Hugging Face model is without its weights: tokenizer, template, config, defaults.

What comes out is a packed model whose manifest says that there are no weights (`"weights": null`). Text and
ids can be worked with; whoever needs the network is told which file is missing.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from slm2_web.compile.chat_template import FROM_FILE
from slm2_web.compile.gguf import unsupported
from slm2_web.compile.hfconfig import CONFIG, GENERATION_CONFIG, parse_config, parse_generation
from slm2_web.compile.models import ModelSpec
from slm2_web.compile.pack import TOKENIZER_FILE
from slm2_web.compile.pack_hf import TOKENIZER, template_of
from slm2_web.manifest import FileEntry, Manifest, manifest_bytes, parse_manifest
from slm2_web.packed import MANIFEST_FILE
from slm2_web.tokenizer2.tokenizer import Tokenizer


def pack_text(
    files: Mapping[str, Path],
    out: Path,
    spec: ModelSpec,
    weights: FileEntry,
    compile_tokenizer: Callable[[bytes], bytes],
) -> Manifest:
    """The manifest of the packed model, written to the directory `out` (replaced if it exists).

    `files`: config.json, generation_config.json, tokenizer.json and tokenizer_config.json, their hashes
    checked. `weights` is the file that is missing.

    Raises: FormatError, as `pack_hf` does.
    """
    config_data = files[CONFIG].read_bytes()
    config = parse_config(config_data).config
    eos_ids, defaults = parse_generation(
        files[GENERATION_CONFIG].read_bytes(), config_data, config.vocab_size
    )
    tokenizer = compile_tokenizer(files[TOKENIZER].read_bytes())
    opened = Tokenizer.from_bytes(tokenizer)
    n_tokens = opened.n_tokens
    if not max(eos_ids) < n_tokens <= config.vocab_size:
        allowed = f"more than {max(eos_ids)}, an eos id, and at most {config.vocab_size} tokens"
        raise unsupported(TOKENIZER, f"{n_tokens} tokens", allowed)
    manifest = Manifest(
        name=spec.name,
        title=spec.title,
        license=spec.license,
        source=weights,
        config=config,
        tokenizer=FileEntry(TOKENIZER_FILE, len(tokenizer), hashlib.sha256(tokenizer).hexdigest()),
        template=template_of(files, opened, FROM_FILE),
        eos_ids=eos_ids,
        defaults={**defaults, **spec.defaults},
        weights_bytes=0,
        shards=(),
        tensors={},
    )
    encoded = manifest_bytes(manifest)
    assert parse_manifest(encoded) == manifest
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        fresh = Path(temporary) / out.name
        fresh.mkdir()
        (fresh / TOKENIZER_FILE).write_bytes(tokenizer)
        (fresh / MANIFEST_FILE).write_bytes(encoded)
        if out.exists():
            out.rename(Path(temporary) / "replaced")
        fresh.rename(out)
    return manifest
