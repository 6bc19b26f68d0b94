"""Pack a Hugging Face model: config.json, generation_config.json, tokenizer files, safetensors.

The weights are read a few rows at a time and quantised as they go by, so the memory it takes is that of the
largest packed tensor (165 MB for Qwen3-0.6B's embedding), not that of the file (1.5 GB).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from slm2_web.compile import weights
from slm2_web.compile.chat_template import FROM_FILE, Framing, choose
from slm2_web.compile.gguf import unsupported
from slm2_web.compile.hfconfig import (
    CONFIG,
    GENERATION_CONFIG,
    HfConfig,
    parse_config,
    parse_generation,
    parse_object,
)
from slm2_web.compile.models import ModelSpec
from slm2_web.compile.pack import Facts, Progress, silent, source_entry, write_model
from slm2_web.compile.safetensors import SafetensorsTensor, bad
from slm2_web.compile.weight_files import INDEX, open_weights, weight_files
from slm2_web.compile.weights import Loss, Quantization, plan_network
from slm2_web.manifest import Manifest, TemplateSpec
from slm2_web.strictjson import show
from slm2_web.tokenizer2.tokenizer import Tokenizer

TOKENIZER, TOKENIZER_CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
# The files of a model besides its safetensors; the second and the last two may be missing.
FILES = (CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, TEMPLATE, INDEX)
MAX_FILE_BYTES = 64 << 20
_TOKEN_NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))

# What `--quant` offers: float matrices as 4-bit blocks with an 8-bit embedding, or all in 8 bits.
QUANTIZATIONS: Mapping[str, Quantization] = {
    "q4_1": Quantization("q8_0", "q4_1"),
    "q4_0": Quantization("q8_0", "q4_0"),
    "q8_0": Quantization("q8_0", "q8_0"),
}
DEFAULT_QUANTIZATION = "q4_1"


def pack_hf(
    files: Mapping[str, Path],
    out: Path,
    spec: ModelSpec,
    *,
    quantization: Quantization = QUANTIZATIONS[DEFAULT_QUANTIZATION],
    compile_tokenizer: Callable[[bytes], bytes],
    progress: Progress = silent,
    report: Callable[[Loss], None] = lambda loss: None,
    framing: Framing = FROM_FILE,
) -> Manifest:
    """The manifest of the packed model, written to the directory `out` (replaced if it exists).

    `files`: those that `files_in` finds, by name. `compile_tokenizer` makes tokenizer.slm2tok of the bytes
    of tokenizer.json. `progress` as for `pack_gguf`; `report` hears what quantising each matrix lost;
    `framing` is what the caller says about the template.

    Raises: FormatError `format.model_file` when the weights are not those that `spec` names,
        `format.safetensors` or `format.unsupported` for what the files hold; what `compile_tokenizer` raises.
    """
    config_data = _read(files, CONFIG)
    parsed = parse_config(config_data)
    generation = _read(files, GENERATION_CONFIG) if GENERATION_CONFIG in files else None
    eos_ids, defaults = parse_generation(generation, config_data, parsed.config.vocab_size)
    tokenizer_json = _read(files, TOKENIZER)
    names = weight_files(files)
    source = replace(source_entry([files[name] for name in names], spec, progress), file=names[0])
    with open_weights(files) as tensors:
        plan = plan_network(
            _untied(tensors, parsed),
            parsed.config,
            parsed.rope_theta,
            weights.SAFETENSORS,
            interleaved=False,
            quantization=quantization,
        )
        progress("tokenizer", 0, 1)
        tokenizer = compile_tokenizer(tokenizer_json)
        opened = Tokenizer.from_bytes(tokenizer)
        n_tokens = opened.n_tokens
        if not max(eos_ids) < n_tokens <= parsed.config.vocab_size:
            allowed = f"more than {max(eos_ids)}, an eos id, and at most {parsed.config.vocab_size} tokens"
            raise unsupported(TOKENIZER, f"{n_tokens} tokens", allowed)
        template = template_of(files, opened, framing)
        progress("tokenizer", 1, 1)
        facts = Facts(spec, source, parsed.config, template, eos_ids, {**defaults, **spec.defaults})
        return write_model(out, facts, tokenizer, plan, progress, report)


def files_in(directory: Path) -> dict[str, Path]:
    """The files of a directory that may be of use: those of FILES, and all safetensors."""
    names = [*FILES, *(path.name for path in sorted(directory.glob("*.safetensors")))]
    return {name: directory / name for name in names if (directory / name).is_file()}


def _read(files: Mapping[str, Path], name: str) -> bytes:
    if name not in files:
        raise bad(name, "nothing", "a file of this name")
    with files[name].open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise bad(name, f"more than {MAX_FILE_BYTES} bytes", f"at most {MAX_FILE_BYTES}")
    return data


def template_of(files: Mapping[str, Path], tokenizer: Tokenizer, framing: Framing) -> TemplateSpec:
    """What frames messages: the template of chat_template.jinja, or of tokenizer_config.json."""
    config: dict[str, object] = {}
    if TOKENIZER_CONFIG in files or not (framing.raw or TEMPLATE in files):
        config = parse_object(_read(files, TOKENIZER_CONFIG), TOKENIZER_CONFIG)
    if TEMPLATE in files:
        text: object = _read(files, TEMPLATE).decode("utf-8", "surrogateescape")
        place = TEMPLATE
    else:
        text = config.get("chat_template")
        place = f"{TOKENIZER_CONFIG}, chat_template"
    if not framing.raw and (not isinstance(text, str) or any("\ud800" <= char <= "\udfff" for char in text)):
        raise unsupported(place, show(text), "one template, as text; or --no-template")
    return choose(place, str(text), _special_tokens(config), tokenizer, framing)


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """The special tokens by the names under which a template finds them."""
    found = {}
    for name in _TOKEN_NAMES:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _untied(tensors: Mapping[str, SafetensorsTensor], parsed: HfConfig) -> dict[str, SafetensorsTensor]:
    """The tensors without a tied output matrix's copy of the embedding, which must be its equal.

    Publishers' files do hold the copy (Qwen3-0.6B's does, 311 MB). transformers ignores it where the config
    says that the two are tied, so a copy that differs would be a model that nobody runs.
    """
    left = dict(tensors)
    embed, output = (weights.SAFETENSORS.theirs(key) for key in ("embed", "output"))
    if not parsed.tied:
        if output not in left:
            raise bad(f"tensor {output!r}", "nothing", "an output matrix: tie_word_embeddings is false")
        return left
    copy = left.pop(output, None)
    if copy is not None and embed in left and not _equal(copy, left[embed]):
        raise unsupported(
            f"tensor {output!r}", "other values than the embedding's", "its equal: they are tied"
        )
    return left


def _equal(a: SafetensorsTensor, b: SafetensorsTensor) -> bool:
    if (a.type, a.shape) != (b.type, b.shape):
        return False
    rows, cols = a.shape
    step = max(1, weights.VALUES_AT_ONCE * 8 // max(cols, 1))
    return all(
        (a.read_rows(first, min(step, rows - first)) == b.read_rows(first, min(step, rows - first))).all()
        for first in range(0, rows, step)
    )
