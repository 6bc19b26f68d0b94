"""GGUF metadata -> tokenizer.slm2tok, for byte-level BPE; whatever is not understood is refused by name.

Source: the GGUF specification (tokenizer.ggml.*); llama.cpp's llama-vocab.cpp for what the keys do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from slm2_web.compile.vocabulary import OPTIONAL_BYTES, Vocabulary, build, unsupported
from slm2_web.errors import FormatError
from slm2_web.tokenizer2.tables import MAX_TOKENS, Normalizer

__all__ = ["PRES", "compile_gguf_tokenizer"]

PREFIX = "tokenizer.ggml."


class Pre(NamedTuple):
    """What a value of `tokenizer.ggml.pre` stands for; GGUF does not say it in other words."""

    normalizer: Normalizer = "none"
    ignores_merges: bool = False


# `tokenizer.ggml.pre`, named as the split is. A GGUF has no word on normalization: the publishers of Qwen use
# NFC.
PRES: Mapping[str, Pre] = {
    "gpt-2": Pre(),
    "smollm": Pre(),
    "qwen2": Pre(normalizer="nfc-9.0"),
    "qwen35": Pre(normalizer="nfc-9.0"),
    "llama-bpe": Pre(ignores_merges=True),
}

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Found in trusted text as whole tokens, never by merges; `special` ones are hidden by decode's "hide".
ADDED_TYPES = {UNKNOWN: True, CONTROL: True, USER_DEFINED: False}

# What we know to have no effect here, or none when false. Anything else is refused: it might have one.
READ_KEYS = {"model", "pre", "tokens", "token_type", "merges"}
IGNORED_KEYS = {"scores", "token_type_count"}
FALSE_KEYS = {
    "add_bos_token",
    "add_eos_token",
    "add_sep_token",
    "add_space_prefix",
    "add_prefix_space",
    "remove_extra_whitespaces",
    "escape_whitespaces",
}
ID_SUFFIX = "_token_id"


class HasMetadata(Protocol):
    """What is needed of a GGUF file."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


def compile_gguf_tokenizer(gguf: HasMetadata, *, normalize: bool = True) -> bytes:
    """tokenizer.slm2tok of the model whose metadata `gguf` holds.

    normalize: false leaves text as received where the publisher normalizes it; the file records that.

    Raises: FormatError `format.unsupported`, which names the key, what was found and what is allowed.
    """
    keys = {key.removeprefix(PREFIX): v for key, v in gguf.metadata.items() if key.startswith(PREFIX)}
    _refuse_unknown_keys(keys)
    if keys.get("model") != "gpt2":
        raise _unsupported("model", keys.get("model"), "gpt2 (byte-level BPE)")
    pre = PRES.get(keys["pre"]) if isinstance(keys.get("pre"), str) else None
    if pre is None:
        raise _unsupported("pre", keys.get("pre"), " | ".join(PRES))
    tokens = _strings(keys, "tokens", MAX_TOKENS)
    types = _types(keys, len(tokens))
    # Padding rows of the embedding have an entry, but no token.
    n_tokens = len(tokens)
    while n_tokens and types[n_tokens - 1] == UNUSED:
        n_tokens -= 1
    _check_named_ids(keys, n_tokens)

    ids: dict[str, int] = {}
    ordinary: dict[str, int] = {}
    added: dict[str, tuple[int, bool]] = {}
    for token_id, (token, kind) in enumerate(zip(tokens[:n_tokens], types[:n_tokens], strict=True)):
        first = ids.setdefault(token, token_id)
        if first != token_id:
            raise _unsupported(f"tokens[{token_id}]", token, f"a token once; it is also tokens[{first}]")
        if not token:
            raise _unsupported(f"tokens[{token_id}]", "0 bytes", "at least 1")
        if kind == NORMAL:
            ordinary[token] = token_id
        elif kind in ADDED_TYPES:
            added[token] = (token_id, ADDED_TYPES[kind])
        else:
            raise _unsupported(f"token_type[{token_id}]", kind, "1, 2, 3, 4, or 5 at the end")
    normalizer = pre.normalizer if normalize or pre.normalizer == "none" else "as-received"
    return build(
        Vocabulary(
            place=PREFIX + "pre",
            vocab_place=PREFIX + "tokens",
            merges_place=PREFIX + "merges",
            split=keys["pre"],
            normalizer=normalizer,
            ordinary=ordinary,
            added=added,
            merges=_merges(keys),
            # NFC makes bytes that the text did not have: a vocabulary that lacks some is refused with it.
            optional_bytes=OPTIONAL_BYTES if normalizer == "none" else frozenset(),
            ignores_merges=pre.ignores_merges,
        )
    )


def _merges(keys: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for rank, merge in enumerate(_strings(keys, "merges", MAX_TOKENS)):
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise _unsupported(f"merges[{rank}]", merge, "two tokens and one space")
        pairs.append((left, right))
    return pairs


def _refuse_unknown_keys(keys: Mapping[str, Any]) -> None:
    for key, value in keys.items():
        if key in FALSE_KEYS:
            if value is not False:
                raise _unsupported(key, value, "false")
        elif key not in READ_KEYS and key not in IGNORED_KEYS and not key.endswith(ID_SUFFIX):
            raise _unsupported(key, value, "no such key")


def _check_named_ids(keys: Mapping[str, Any], n_tokens: int) -> None:
    for key, value in keys.items():
        if key.endswith(ID_SUFFIX) and not (_is_integer(value) and 0 <= value < n_tokens):
            raise _unsupported(key, value, f"an id below {n_tokens}")


def _types(keys: Mapping[str, Any], n_tokens: int) -> list[int]:
    types = list(_sequence(keys, "token_type"))
    if not all(_is_integer(kind) for kind in types):
        raise _unsupported("token_type", "an entry that is no integer", "integers")
    if len(types) != n_tokens:
        raise _unsupported("token_type", f"{len(types)} entries", f"{n_tokens}, one for each token")
    return types


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _strings(keys: Mapping[str, Any], key: str, max_count: int) -> list[str]:
    values = list(_sequence(keys, key))
    if not 1 <= len(values) <= max_count or not all(isinstance(value, str) for value in values):
        raise _unsupported(key, f"{len(values)} entries", f"1 to {max_count} strings")
    return values


def _sequence(keys: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = keys.get(key)
    if value is None or isinstance(value, str | bytes) or not hasattr(value, "__len__"):
        raise _unsupported(key, value, "an array")
    return value  # type: ignore[no-any-return]


def _unsupported(place: str, found: object, allowed: str) -> FormatError:
    return unsupported(PREFIX + place, found, allowed)
