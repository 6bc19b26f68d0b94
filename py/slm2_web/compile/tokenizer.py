"""GGUF metadata -> tokenizer.slm2tok, for byte-level BPE; whatever is not understood is refused by name.

`split_classes_ucd16.json` holds the pinned classes of Unicode 16.0 (ranges of \\p{L}, \\p{N}, \\s), equal to
those that the publishers' tokenizers use. The host's Unicode tables have another version on each machine.

Source: the GGUF specification (tokenizer.ggml.*); llama.cpp's llama-vocab.cpp for what the keys do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slm2_web.errors import FormatError
from slm2_web.tokenizer2.split import LETTER, NUMBER, WHITESPACE
from slm2_web.tokenizer2.tables import MAX_TOKEN_BYTES, MAX_TOKENS, NO_TOKEN, SPLITS, Ids, Tables, pack

PREFIX = "tokenizer.ggml."
CLASSES_FILE = Path(__file__).with_name("split_classes_ucd16.json")

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

# Bytes that a vocabulary may lack: no UTF-8 text holds C0, C1 and F5..FF; F1 and F2 open the planes 4 to 11,
# which hold no character; the others are control characters (not tab, line feed, carriage return).
# Text that has one is refused when encoded (`input.character`); it is never dropped.
OPTIONAL_BYTES = frozenset(
    {0xC0, 0xC1, *range(0xF5, 0x100), 0xF1, 0xF2, 0x7F} | (set(range(0x20)) - {0x09, 0x0A, 0x0D})
)


class HasMetadata(Protocol):
    """What is needed of a GGUF file."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


def compile_gguf_tokenizer(gguf: HasMetadata) -> bytes:
    """tokenizer.slm2tok of the model whose metadata `gguf` holds.

    Raises: FormatError `format.unsupported`, which names the key, what was found and what is allowed.
    """
    keys = {key.removeprefix(PREFIX): v for key, v in gguf.metadata.items() if key.startswith(PREFIX)}
    _refuse_unknown_keys(keys)
    if keys.get("model") != "gpt2":
        raise _unsupported("model", keys.get("model"), "gpt2 (byte-level BPE)")
    if keys.get("pre") not in SPLITS:
        raise _unsupported("pre", keys.get("pre"), " | ".join(SPLITS))
    tokens = _strings(keys, "tokens", MAX_TOKENS)
    types = _types(keys, len(tokens))
    # Padding rows of the embedding have an entry, but no token.
    n_tokens = len(tokens)
    while n_tokens and types[n_tokens - 1] == UNUSED:
        n_tokens -= 1
    tokens, types = tokens[:n_tokens], types[:n_tokens]
    _check_named_ids(keys, n_tokens)

    ids: dict[str, int] = {}
    spellings: list[bytes] = []
    added: list[tuple[int, int]] = []
    for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True)):
        place = f"tokens[{token_id}]"
        if token in ids:
            raise _unsupported(place, token, f"a token once; it is also tokens[{ids[token]}]")
        ids[token] = token_id
        if kind in ADDED_TYPES:
            spelling = token.encode("utf-8")
            added.append((token_id, int(ADDED_TYPES[kind])))
        elif kind == NORMAL:
            spelling = _byte_level(token, place)
        else:
            raise _unsupported(f"token_type[{token_id}]", kind, "1, 2, 3, 4, or 5 at the end")
        if not 1 <= len(spelling) <= MAX_TOKEN_BYTES:
            raise _unsupported(place, f"{len(spelling)} bytes", f"1 to {MAX_TOKEN_BYTES}")
        spellings.append(spelling)
    normal_ids = {token: i for token, i in ids.items() if types[i] == NORMAL}
    return pack(
        Tables(
            split=keys["pre"],
            offsets=np.cumsum([0, *map(len, spellings)]).astype(np.uint32),
            blob=b"".join(spellings),
            byte_ids=_byte_ids(normal_ids),
            merges=_merges(keys, normal_ids),
            added=np.array(added, np.uint32).reshape(-1, 2),
            classes=split_classes(),
        )
    )


def split_classes() -> Ids:
    """The pinned classes as u32[n, 3] rows (first, last, class), ascending."""
    ranges = json.loads(CLASSES_FILE.read_text("utf-8"))
    rows = []
    for name, kind in (("\\p{L}", LETTER), ("\\p{N}", NUMBER), ("\\s", WHITESPACE)):
        for text in ranges[name]:
            first, _, last = text.partition("-")
            rows.append((int(first, 16), int(last or first, 16), kind))
    return np.array(sorted(rows), np.uint32)


def byte_alphabet() -> dict[str, int]:
    """Byte by the character that spells it: printable Latin-1 as itself, the others from U+0100 on.

    Source: GPT-2's bytes_to_unicode.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


_ALPHABET = byte_alphabet()


def _byte_level(token: str, place: str) -> bytes:
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError as error:
        found = f"{token!r}, which has {error.args[0]!r}"
        raise _unsupported(place, found, "characters of the byte-level alphabet") from None


def _byte_ids(normal_ids: Mapping[str, int]) -> Ids:
    byte_ids = np.full(256, NO_TOKEN, np.uint32)
    for char, byte in _ALPHABET.items():
        if char in normal_ids:
            byte_ids[byte] = normal_ids[char]
        elif byte not in OPTIONAL_BYTES:
            raise _unsupported("tokens", f"none for byte 0x{byte:02X}", "one for each byte of ordinary text")
    return byte_ids


def _merges(keys: Mapping[str, Any], normal_ids: Mapping[str, int]) -> Ids:
    merges = _strings(keys, "merges", MAX_TOKENS)
    rows = np.empty((len(merges), 3), np.uint32)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(merges):
        place = f"merges[{rank}]"
        left, _, right = merge.partition(" ")
        if not left or not right or " " in right:
            raise _unsupported(place, merge, "two tokens and one space")
        if merge in ranks:
            raise _unsupported(place, merge, f"a merge once; it is also merges[{ranks[merge]}]")
        ranks[merge] = rank
        for column, token in enumerate((left, right, left + right)):
            if token not in normal_ids:
                raise _unsupported(place, f"{merge!r}, where {token!r} is no token of type 1", "such tokens")
            rows[rank, column] = normal_ids[token]
    return rows


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
    text = found if isinstance(found, str) else repr(found)
    text = text if len(text) <= 100 else text[:97] + "..."
    return FormatError(
        "format.unsupported",
        f"{PREFIX}{place}: found {text}; allowed: {allowed}",
        {"place": f"{PREFIX}{place}", "found": text, "allowed": allowed},
    )
