"""Which template frames a model's messages: known by its hash, compiled, generic ChatML, or none.

    known      its sha256 is in CHAT_TEMPLATES: a hand-written family frames messages just so
    compiled   any other template is compiled from its Jinja text (jinja.py) and tried (jinja_canary.py)
    ChatML     a file without a template, whose vocabulary has ChatML's markers; said aloud
    raw        `--no-template`: the contents, and nothing else

A template that can't be compiled is refused with the construct and its line. There is no fallback to another.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from slm2_web.compile.gguf import unsupported
from slm2_web.errors import FormatError
from slm2_web.manifest import COMPILED, TemplateSpec
from slm2_web.tokenizer2.tokenizer import Tokenizer

# sha256 of a model's chat template -> the family that frames messages in just that way.
CHAT_TEMPLATES: Mapping[str, TemplateSpec] = {
    # SmolLM2 Instruct
    "872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788": TemplateSpec(
        "chatml", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    ),
    # Qwen2.5 Instruct
    "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f": TemplateSpec(
        "qwen2.5", "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    ),
    # Qwen3 at revision c1899de289a04d12100db370d81485cdf75e47ca of Qwen3-0.6B
    "a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8": TemplateSpec("qwen3", None),
}
_CHATML_MARKERS = (b"<|im_start|>", b"<|im_end|>")


def _silent(text: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Framing:
    """What whoever packs a model says about its template.

    raw   no template, whatever the file has
    date  what a template takes for today when it asks
    say   hears what was decided in the file's stead
    """

    raw: bool = False
    date: datetime.date | None = None
    say: Callable[[str], None] = _silent


FROM_FILE = Framing()


def choose(
    place: str, text: str | None, variables: Mapping[str, str], tokenizer: Tokenizer, framing: Framing
) -> TemplateSpec:
    """The template of a model whose file has `text` for one, or None.

    variables: the special tokens by the names under which the template finds them.

    Raises: FormatError `format.unsupported` for a template that can't be compiled, or that fails; for none
        where the vocabulary has no ChatML.
    """
    if framing.raw:
        return TemplateSpec("raw", None)
    if text is None:
        return _generic(place, tokenizer, framing)
    known = CHAT_TEMPLATES.get(hashlib.sha256(text.encode("utf-8")).hexdigest())
    return known or _compiled(place, text, variables, tokenizer, framing)


def _generic(place: str, tokenizer: Tokenizer, framing: Framing) -> TemplateSpec:
    try:
        for marker in _CHATML_MARKERS:
            tokenizer.control_id(marker)
    except FormatError:
        allowed = "a template, a vocabulary with ChatML's markers, or --no-template"
        raise unsupported(place, "nothing, and no <|im_start|> in the vocabulary", allowed) from None
    framing.say(f"{place}: there is no chat template; messages are framed as generic ChatML")
    return TemplateSpec("chatml", None)


def _compiled(
    place: str, text: str, variables: Mapping[str, str], tokenizer: Tokenizer, framing: Framing
) -> TemplateSpec:
    # Not before it is needed: the models of the site are packed without jinja2.
    try:
        from slm2_web.compile import jinja, jinja_canary
    except ModuleNotFoundError as error:
        if error.name not in ("jinja2", "markupsafe"):
            raise
        allowed = "one of CHAT_TEMPLATES where the package jinja2 is not installed"
        raise unsupported(place, "a template to compile", allowed) from None
    from slm2_web.template2.bounded.program import read_program

    made = jinja.compile_template(text, variables, date=framing.date, place=place)
    jinja_canary.check(place, text, read_program(made), framing.date, tokenizer)
    return TemplateSpec(COMPILED, None, made)
