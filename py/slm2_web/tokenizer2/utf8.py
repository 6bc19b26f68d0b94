"""Bytes -> whole UTF-8 characters, as they come.

Theory of operation
-------------------
A well-formed character is one of the nine byte sequences of the Unicode Standard's table 3-7. Only the
second byte's range depends on the first; every later byte is 80..BF. So after a lead byte the automaton
knows the number of bytes still due and the range of the next one; that is its whole state:

    lead      next byte   then
    00..7F                            C0, C1 and F5..FF open nothing: they would be overlong forms
    C2..DF    80..BF                  or lie beyond U+10FFFF
    E0        A0..BF      1 more      not overlong
    E1..EC    80..BF      1 more
    ED        80..9F      1 more      no surrogates
    EE..EF    80..BF      1 more
    F0        90..BF      2 more      not overlong
    F1..F3    80..BF      2 more
    F4        80..8F      2 more      up to U+10FFFF

A byte that no character can hold at its place ends the stream with `InvalidUtf8`: nothing is replaced
and nothing is dropped.

Source: The Unicode Standard 16.0, section 3.9, table 3-7.
"""

from __future__ import annotations

# (first lead, last lead): (lowest second byte, highest second byte, bytes after the lead)
_LEADS = {
    (0xC2, 0xDF): (0x80, 0xBF, 1),
    (0xE0, 0xE0): (0xA0, 0xBF, 2),
    (0xE1, 0xEC): (0x80, 0xBF, 2),
    (0xED, 0xED): (0x80, 0x9F, 2),
    (0xEE, 0xEF): (0x80, 0xBF, 2),
    (0xF0, 0xF0): (0x90, 0xBF, 3),
    (0xF1, 0xF3): (0x80, 0xBF, 3),
    (0xF4, 0xF4): (0x80, 0x8F, 3),
}
_NEXT = {lead: state for (first, last), state in _LEADS.items() for lead in range(first, last + 1)}


class InvalidUtf8(Exception):
    """Bytes that can never become UTF-8.

    offset: where in the stream the ill-formed sequence begins.
    data:   the whole characters before it that the failing call had not yet returned.
    """

    def __init__(self, offset: int, data: bytes) -> None:
        super().__init__(f"not UTF-8 from byte {offset} on")
        self.offset = offset
        self.data = data


class Utf8Stream:
    """Holds back the bytes of an unfinished character; releases the rest."""

    def __init__(self) -> None:
        self._held = b""
        self._released_bytes = 0
        self._due = 0
        self._low, self._high = 0x80, 0xBF

    def feed(self, data: bytes) -> bytes:
        """The whole characters that `data` completes.

        Raises: InvalidUtf8 at the first byte that no character can hold; the stream is then of no more use.
        """
        whole = 0
        joined = self._held + data
        for at in range(len(self._held), len(joined)):
            byte = joined[at]
            if self._due:
                if not self._low <= byte <= self._high:
                    raise InvalidUtf8(self._released_bytes + whole, joined[:whole])
                self._due -= 1
                self._low, self._high = 0x80, 0xBF
            elif byte >= 0x80:
                if byte not in _NEXT:
                    raise InvalidUtf8(self._released_bytes + whole, joined[:whole])
                self._low, self._high, self._due = _NEXT[byte]
            if not self._due:
                whole = at + 1
        self._held = joined[whole:]
        self._released_bytes += whole
        return joined[:whole]

    def finish(self) -> bytes:
        """The bytes still held: the beginning of a character that never came, or nothing."""
        return self._held
