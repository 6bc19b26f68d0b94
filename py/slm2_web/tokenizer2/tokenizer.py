"""Runs -> ids, and ids -> bytes: the tokenizer of one model.

    runs -special.py-> spans -normalize.py-> text -split.py-> pieces -merge.py-> ids

The tables are used where they lie (tables.py). What is built from them is small, and only when first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from slm2_web.errors import FormatError, InputError
from slm2_web.tokenizer2.merge import Merger
from slm2_web.tokenizer2.normalize import Normalizer
from slm2_web.tokenizer2.runs import Control, Run, Trusted, Untrusted
from slm2_web.tokenizer2.special import AddedTokens
from slm2_web.tokenizer2.split import Splitter
from slm2_web.tokenizer2.tables import NO_TOKEN, Tables, Vocabulary, int_view, parse
from slm2_web.tokenizer2.words import Words

# Pieces whose ids are remembered: words recur. Cleared when full, which keeps it bounded and simple.
CACHE_PIECES = 1 << 14
CACHE_PIECE_BYTES = 64


class Tokenizer:
    """A byte-level BPE tokenizer. `n_tokens`: ids from there on have no token."""

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Tokenizer:
        """The tokenizer in `data`, a tokenizer.slm2tok file.

        Raises: FormatError `format.tokenizer_file`.
        """
        return cls(parse(data))

    def __init__(self, tables: Vocabulary, whole: Callable[[], Tables] | None = None) -> None:
        """`tables`: all of them; or the vocabulary, for who encodes by a kernel, and `whole`, which gets them
        all when Python has to encode after all (incremental.py)."""
        self._whole = whole
        self._vocabulary = tables
        self.n_tokens: int = tables.n_tokens
        self._offsets = int_view(tables.offsets)
        self._special: dict[int, bool] = {
            token_id: bool(special) for token_id, special in tables.added.tolist()
        }
        self._markers: dict[bytes, int] = {self._bytes_at(token_id): token_id for token_id in self._special}
        self._byte_ids: list[int] = tables.byte_ids.tolist()
        (known,) = np.nonzero(tables.byte_ids != NO_TOKEN)
        self._known_bytes = bytes(known.tolist())
        self._cache: dict[bytes, list[int]] = {}

    @cached_property
    def _tables(self) -> Tables:
        if isinstance(self._vocabulary, Tables):
            return self._vocabulary
        assert self._whole is not None, "the tables lie with the kernel, which encodes"
        return self._whole()

    @cached_property
    def added_tokens(self) -> AddedTokens:
        """What finds markers in trusted text."""
        tables = self._vocabulary
        return AddedTokens(tables.marker_classes, tables.marker_goto, tables.marker_ends)

    @cached_property
    def normalizer(self) -> Normalizer | None:
        """What normalizes text; None where it is used as received."""
        return Normalizer(self._tables) if self._vocabulary.normalizer == "nfc-9.0" else None

    @cached_property
    def splitter(self) -> Splitter:
        """What cuts text into pieces."""
        tables = self._tables
        return Splitter(tables.start_state, tables.split_classes, tables.split_next, tables.split_flags)

    @cached_property
    def _words(self) -> Words:
        tables = self._tables
        return Words(tables.words, tables.max_word_bytes, tables.offsets, tables.blob)

    @cached_property
    def _merger(self) -> Merger:
        return Merger(self._tables.pair_base, self._tables.pair_slots, self._tables.merged)

    def encode(self, runs: Iterable[Run]) -> list[int]:
        """The ids of `runs`. Text between two controls is encoded as one string, whatever its parts' trust.

        Raises: InputError `input.text` (not UTF-8), `input.character` (a byte without a token in this
        vocabulary), both with the run's index and the byte's offset in it; `input.token_id` (a control that
        is none).
        """
        ids: list[int] = []
        texts: list[tuple[bytes, bool]] = []
        for index, run in enumerate(runs):
            if isinstance(run, Control):
                self._encode_texts(texts, ids)
                texts.clear()
                self._check_control(run, index)
                ids.append(run.id)
            else:
                self._check_text(run, index)
                texts.append((run.data, isinstance(run, Trusted)))
        self._encode_texts(texts, ids)
        return ids

    def decode(self, ids: Iterable[int], *, special: Literal["show", "hide"] = "show") -> bytes:
        """The bytes of `ids`; "hide" leaves out the special ones (a user-defined added token is shown).

        Raises: InputError `input.token_id` with the position in `ids`.
        """
        parts = []
        for index, token_id in enumerate(ids):
            self._check_id(token_id, index)
            if special == "show" or not self._special.get(token_id, False):
                parts.append(self._bytes_at(token_id))
        return b"".join(parts)

    def decode_parts(self, ids: Iterable[int]) -> list[bytes | Control]:
        """`ids` as text and controls: the bytes between added tokens, and each added token as its id.

        Raises: InputError `input.token_id` with the position in `ids`.
        """
        parts: list[bytes | Control] = []
        text: list[bytes] = []
        for index, token_id in enumerate(ids):
            self._check_id(token_id, index)
            if token_id not in self._special:
                text.append(self._bytes_at(token_id))
                continue
            if text:
                parts.append(b"".join(text))
                text.clear()
            parts.append(Control(token_id))
        if text:
            parts.append(b"".join(text))
        return parts

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token; of a control token, its marker's text.

        Raises: InputError `input.token_id`.
        """
        self._check_id(token_id, 0)
        return self._bytes_at(token_id)

    def is_control(self, token_id: int) -> bool:
        """Whether `token_id` is an added token: one that no untrusted text can become."""
        return token_id in self._special

    def control_id(self, marker: bytes) -> int:
        """The id of the added token whose text is `marker`.

        Raises: FormatError `format.unsupported` when the vocabulary has none.
        """
        token_id = self._markers.get(marker)
        if token_id is None:
            text = marker.decode("utf-8", "backslashreplace")
            raise FormatError(
                "format.unsupported",
                f"tokenizer: found no added token {text!r}; the model's template needs it",
                {"marker": text},
            )
        return token_id

    def _encode_texts(self, texts: list[tuple[bytes, bool]], ids: list[int]) -> None:
        for span in self.added_tokens.scan(texts) if texts else ():
            if isinstance(span, int):
                ids.append(span)
            else:
                self._encode_span(span, ids)

    def _encode_span(self, span: bytes, ids: list[int]) -> None:
        text = self.normalizer.normalize(span) if self.normalizer else span
        ids += self.encode_pieces(text, self.splitter.cuts(text).ends)

    def encode_pieces(self, text: bytes, ends: list[int]) -> list[int]:
        """The ids of the pieces of `text` between neighbouring `ends`."""
        ids: list[int] = []
        known = self._cache.get
        for start, end in pairwise(ends):
            piece = text[start:end]
            ids += known(piece) or self._encode_piece(piece)
        return ids

    def _encode_piece(self, piece: bytes) -> list[int]:
        token_id = self._words.find(piece)
        if token_id is not None:
            ids = [token_id]
        else:
            byte_ids = self._byte_ids
            ids = self._merger.merge([byte_ids[byte] for byte in piece])
        if len(piece) <= CACHE_PIECE_BYTES:
            if len(self._cache) >= CACHE_PIECES:
                self._cache.clear()
            self._cache[piece] = ids
        return ids

    def _check_control(self, run: Control, index: int) -> None:
        if run.id not in self._special:
            raise _token_id_error(run.id, index, "the id of a control token")

    def _check_text(self, run: Trusted | Untrusted, index: int) -> None:
        try:
            run.data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                "input.text",
                f"run {index}: not UTF-8 at byte {error.start}; allowed: well-formed UTF-8",
                {"run": index, "offset_bytes": error.start},
            ) from None
        unknown = run.data.translate(None, self._known_bytes)
        if unknown:
            offset = run.data.index(unknown[:1])
            raise InputError(
                "input.character",
                f"run {index}: byte 0x{unknown[0]:02X} at byte {offset} has no token in this vocabulary",
                {"run": index, "offset_bytes": offset, "byte": unknown[0]},
            )

    def _check_id(self, token_id: int, index: int) -> None:
        if not isinstance(token_id, int) or not 0 <= token_id < self.n_tokens:
            raise _token_id_error(token_id, index, f"0 to {self.n_tokens - 1}")
        if self._offsets[token_id] == self._offsets[token_id + 1]:
            raise _token_id_error(token_id, index, "an id that has a token")

    def _bytes_at(self, token_id: int) -> bytes:
        return bytes(self._vocabulary.blob[self._offsets[token_id] : self._offsets[token_id + 1]])


def _token_id_error(token_id: object, index: int, allowed: str) -> InputError:
    return InputError(
        "input.token_id",
        f"position {index}: found {token_id!r}; allowed: {allowed}",
        {"position": index, "id": token_id if isinstance(token_id, int) else repr(token_id)},
    )
