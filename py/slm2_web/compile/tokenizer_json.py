"""tokenizer.json of `tokenizers` -> tokenizer.slm2tok, for byte-level BPE; what is not understood is refused by name.

Source: `tokenizers` 0.23.3, the serialized forms of its components and AddedVocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slm2_web.compile.dfa import PATTERNS
from slm2_web.compile.vocabulary import Vocabulary, build, unsupported
from slm2_web.errors import FormatError
from slm2_web.strictjson import NotJson, loads
from slm2_web.tokenizer2.tables import MAX_TOKENS, Normalizer

MAX_BYTES = 64 << 20

_ANY = object()  # a value that has no effect on ids, or one that is looked at elsewhere
_NO_AFFIX = (None, "")


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": _ANY, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# Pre-tokenizers by their exact structure. ByteLevel's own pattern is GPT-2's.
PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = {
    "gpt-2": _byte_level(True),
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, _byte_level(True)],
    },
    **{
        name: {"type": "Sequence", "pretokenizers": [_split(PATTERNS[name]), _byte_level(False)]}
        for name in ("qwen2", "llama-bpe", "qwen35")
    },
}

# The parts that have one form only. A list holds the values that are allowed.
_FORM: Mapping[str, Any] = {
    "version": ["1.0"],
    "truncation": [None],
    "padding": [None],
    "post_processor": [None, {**_byte_level(False), "add_prefix_space": _ANY, "use_regex": _ANY}],
    "decoder": [{**_byte_level(False), "add_prefix_space": _ANY, "use_regex": _ANY}],
    "normalizer": [None, {"type": "NFC"}],
    "added_tokens": _ANY,
    "pre_tokenizer": _ANY,
    "model": _ANY,
}
_MODEL_FORM: Mapping[str, Any] = {
    "type": ["BPE"],
    "dropout": [None],
    "unk_token": [None],
    "continuing_subword_prefix": _NO_AFFIX,
    "end_of_word_suffix": _NO_AFFIX,
    "fuse_unk": [False],
    "byte_fallback": [False],
    "ignore_merges": [False, True],
    "vocab": _ANY,
    "merges": _ANY,
}
_MODEL_OPTIONAL = {"type", "ignore_merges"}
_ADDED_FORM: Mapping[str, Any] = {
    "id": _ANY,
    "content": _ANY,
    "single_word": [False],
    "lstrip": [False],
    "rstrip": [False],
    "normalized": [False],
    "special": [False, True],
}


def compile_tokenizer_json(data: bytes, *, normalize: bool = True) -> bytes:
    """tokenizer.slm2tok of the tokenizer.json in `data`.

    normalize: false leaves text as received where the publisher normalizes it; the file records that.

    Raises: FormatError `format.unsupported`, which names the construct and where it stands.
    """
    try:
        top = loads(data, max_bytes=MAX_BYTES)
    except NotJson as error:
        raise unsupported("tokenizer.json", str(error), "JSON") from None
    _check_form(top, _FORM, "tokenizer.json", optional=set())
    model = top["model"]
    _check_form(model, _MODEL_FORM, "model", optional=_MODEL_OPTIONAL)
    vocab = _vocab(model["vocab"])
    added = _added(top["added_tokens"], vocab)
    normalizer: Normalizer = "none"
    if top["normalizer"] is not None:
        normalizer = "nfc-9.0" if normalize else "as-received"
    return build(
        Vocabulary(
            place="model",
            vocab_place="model.vocab",
            merges_place="model.merges",
            split=_pre_tokenizer(top["pre_tokenizer"]),
            normalizer=normalizer,
            ordinary={token: token_id for token, token_id in vocab.items() if token not in added},
            added=added,
            merges=_merges(model["merges"]),
            ignores_merges=model.get("ignore_merges", False),
        )
    )


def _pre_tokenizer(value: Any) -> str:
    """The name of the split; where none fits, the error names the place where the nearest one differs."""
    nearest: FormatError | None = None
    depth = -1
    for name, form in PRE_TOKENIZERS.items():
        try:
            _check_value(value, form, "pre_tokenizer")
        except FormatError as error:
            # The form that agrees furthest: its difference stands deepest in the structure.
            agreed = error.detail["place"].count(".") + error.detail["place"].count("[")
            if agreed > depth:
                nearest, depth = error, agreed
        else:
            return name
    assert nearest is not None
    raise nearest


def _check_form(value: Any, form: Mapping[str, Any], place: str, optional: set[str]) -> None:
    if not isinstance(value, dict):
        raise unsupported(place, value, "an object")
    for key in value:
        if key not in form:
            raise unsupported(f"{place}.{key}", value[key], "no such key")
    for key, allowed in form.items():
        if key not in value:
            if key in optional:
                continue
            raise unsupported(f"{place}.{key}", "none", "this key")
        if allowed is not _ANY:
            _check_one_of(value[key], allowed, f"{place}.{key}")


def _check_one_of(value: Any, allowed: Any, place: str) -> None:
    errors = []
    for form in allowed:
        try:
            _check_value(value, form, place)
            return
        except FormatError as error:
            errors.append(error)
    # The last form is the one with parts: it names the part that differs, if the value has parts, too.
    if isinstance(value, dict):
        raise errors[-1]
    raise unsupported(place, value, " | ".join(map(_shown, allowed)))


def _check_value(value: Any, form: Any, place: str) -> None:
    if form is _ANY:
        return
    if isinstance(form, dict):
        if not isinstance(value, dict) or value.get("type") != form.get("type"):
            raise unsupported(place, value, _shown(form))
        for key in value:
            if key not in form:
                raise unsupported(f"{place}.{key}", value[key], "no such key")
        for key, part in form.items():
            if key not in value:
                raise unsupported(f"{place}.{key}", "none", "this key")
            _check_value(value[key], part, f"{place}.{key}")
    elif isinstance(form, list):
        if not isinstance(value, list) or len(value) != len(form):
            raise unsupported(place, value, f"{len(form)} entries")
        for at, part in enumerate(form):
            _check_value(value[at], part, f"{place}[{at}]")
    elif type(value) is not type(form) or value != form:
        raise unsupported(place, value, _shown(form))


def _shown(form: Any) -> str:
    return form["type"] if isinstance(form, dict) and "type" in form else repr(form)


def _vocab(value: Any) -> dict[str, int]:
    if not isinstance(value, dict) or not 1 <= len(value) <= MAX_TOKENS:
        raise unsupported("model.vocab", type(value).__name__, f"an object of 1 to {MAX_TOKENS} tokens")
    for token, token_id in value.items():
        _check_id(token_id, f"model.vocab[{token!r}]")
    return value


def _added(value: Any, vocab: Mapping[str, int]) -> dict[str, tuple[int, bool]]:
    if not isinstance(value, list) or len(value) > MAX_TOKENS:
        raise unsupported("added_tokens", value, "an array")
    added: dict[str, tuple[int, bool]] = {}
    for at, entry in enumerate(value):
        place = f"added_tokens[{at}]"
        _check_form(entry, _ADDED_FORM, place, optional=set())
        content = entry["content"]
        if not isinstance(content, str) or not content or content in added:
            raise unsupported(f"{place}.content", content, "text that is not empty, each once")
        _check_id(entry["id"], f"{place}.id")
        if content in vocab and vocab[content] != entry["id"]:
            raise unsupported(f"{place}.id", entry["id"], f"{vocab[content]}, as in model.vocab")
        added[content] = (entry["id"], entry["special"])
    return added


def _check_id(value: Any, place: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < MAX_TOKENS:
        raise unsupported(place, value, f"an id below {MAX_TOKENS}")


def _merges(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        raise unsupported("model.merges", value, "an array")
    pairs = []
    for rank, merge in enumerate(value):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(t, str) and t for t in pair):
            raise unsupported(f"model.merges[{rank}]", merge, "two tokens")
        pairs.append((pair[0], pair[1]))
    return pairs
