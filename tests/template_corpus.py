"""The seeded conversations of the parity suite, by the name under which the template tests know them."""

from slm2_web.parity.conversations import (
    CONTROLS,
    COUNTS,
    FAMILIES,
    Case,
    conversation,
    conversations,
    digest,
)
from slm2_web.parity.dice import Dice

__all__ = ["CONTROLS", "COUNTS", "FAMILIES", "Case", "Dice", "conversation", "conversations", "digest"]
