"""The three kinds of run that a prompt is made of. Trust is a type, not a flag.

A prompt is a sequence of runs. `Control` is one control id; only Template2 makes it. `Trusted` is text
written by us (template words); it may match an added token. `Untrusted` is text from anybody else; it
never does. Adjacent text runs are encoded jointly: trust decides which bytes may match an added token,
never where BPE may merge.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Control:
    """One control id, placed by the template."""

    id: int


@dataclass(frozen=True, slots=True)
class Trusted:
    """UTF-8 text of our own; may match an added token."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Untrusted:
    """UTF-8 text of somebody else; never becomes a control id."""

    data: bytes


Run = Control | Trusted | Untrusted
