"""tokenizer.json of `tokenizers` -> tokenizer.slm2tok, for byte-level BPE; what is not understood is refused
by name.

Source: `tokenizers` 0.23.3, the serialized forms of its components and AddedVocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """The name of the split; where no form fits, the error names the place where the nearest one differs."""
    nearest: list[FormatError] = []
    for name, form in PRE_TOKENIZERS.items():
        differences = list(_differences(value, form, "pre_tokenizer"))
        if not differences:
            return name
        # A form that agrees at the top is nearer, then the one that differs less, then deeper in the
        # structure.
        if not nearest or _distance(differences) < _distance(nearest):
            nearest = differences
    raise nearest[0]


def _distance(differences: list[FormatError]) -> tuple[bool, int, int]:
    place = differences[0].detail["place"]
    return place == "pre_tokenizer", len(differences), -len(place)


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
    differences: list[FormatError] = []
    for form in allowed:
        differences = list(_differences(value, form, place))
        if not differences:
            return
    # The last form is the one with parts: it names the part that differs, if the value has parts, too.
    if isinstance(value, dict):
        raise differences[0]
    raise unsupported(place, value, " | ".join(map(_shown, allowed)))


def _differences(value: Any, form: Any, place: str) -> Iterator[FormatError]:
    """Where `value` is not as `form`, in the order of the structure."""
    if form is _ANY:
        return
    if isinstance(form, dict):
        if not isinstance(value, dict) or value.get("type") != form.get("type"):
            yield unsupported(place, value, _shown(form))
            return
        for key in value:
            if key not in form:
                yield unsupported(f"{place}.{key}", value[key], "no such key")
        for key, part in form.items():
            if key in value:
                yield from _differences(value[key], part, f"{place}.{key}")
            else:
                yield unsupported(f"{place}.{key}", "none", "this key")
    elif isinstance(form, list):
        if not isinstance(value, list) or len(value) != len(form):
            yield unsupported(place, value, f"{len(form)} entries")
            return
        for at, part in enumerate(form):
            yield from _differences(value[at], part, f"{place}[{at}]")
    elif type(value) is not type(form) or value != form:
        yield unsupported(place, value, _shown(form))


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
