"""Local state and evidence -> text in declared markers, before the words of the user's message.

    <history_truncated>
    <local_state>
    CONTENT
    </local_state>
    <evidence id="ID">
    CONTENT
    </evidence>
    <user_message>
    WORDS

Theory of operation
-------------------
The markers are the template's words (`Trusted`); ID, CONTENT and WORDS are somebody else's (`Untrusted`).
No part can be taken for another, whatever it says:

    CONTENT  a `<` that begins an imitation of a marker gets a backslash after it. An imitation is `<`, any
             number of backslashes, any white space and slashes, and a marker's name in any case. So content
             holds no marker, and taking one backslash away from each imitation gives it back.
    ID       a JSON string, with `<` and `>` as \\u003c and \\u003e: it ends at its quote, on its line.
    WORDS    are never rewritten. The line `<user_message>` stands before them when a block does, and when
             they begin like a marker themselves; all that follows that line is theirs.

Every line break next to CONTENT is the template's: the text around a marker cannot compose with it. No text
turns into a name by normalization, since no character but `<` and the letters themselves becomes one.
"""

from __future__ import annotations

import json
import re

from slm2_web.tokenizer2.runs import Trusted, Untrusted

NAMES = ("local_state", "evidence", "history_truncated", "user_message")

_Text = Trusted | Untrusted
_IMITATION = re.compile(rb"<(?=\\*[\s/]*(?:%s))" % "|".join(NAMES).encode(), re.IGNORECASE)

HISTORY_TRUNCATED: tuple[_Text, ...] = (Trusted(b"<history_truncated>\n"),)
USER_MESSAGE: tuple[_Text, ...] = (Trusted(b"<user_message>\n"),)


def escape(content: bytes) -> bytes:
    """`content` without markers: `<evidence` becomes `<\\evidence`, and `<\\evidence` `<\\\\evidence`."""
    return _IMITATION.sub(rb"<\\", content)


def local_state_block(content: bytes) -> tuple[_Text, ...]:
    """The runs of `content` as local state."""
    return (Trusted(b"<local_state>\n"), Untrusted(escape(content)), Trusted(b"\n</local_state>\n"))


def evidence_block(evidence_id: str, content: bytes) -> tuple[_Text, ...]:
    """The runs of `content` as the evidence with this id."""
    quoted = json.dumps(evidence_id, ensure_ascii=False).replace("<", "\\u003c").replace(">", "\\u003e")
    return (
        Trusted(b'<evidence id="'),
        Untrusted(quoted[1:-1].encode("utf-8")),
        Trusted(b'">\n'),
        Untrusted(escape(content)),
        Trusted(b"\n</evidence>\n"),
    )


def begins_like_a_marker(words: bytes) -> bool:
    """Whether `words` could be taken for a block."""
    return _IMITATION.match(words) is not None


def user_content(blocks: tuple[_Text, ...], words: bytes) -> bytes | tuple[_Text, ...]:
    """The content of a user's message: `words` as they are, unless something must be kept apart from them."""
    if not blocks and not begins_like_a_marker(words):
        return words
    return (*blocks, *USER_MESSAGE, Untrusted(words))
