"""Which template a packed model gets: known, compiled, generic ChatML, none; and the canary's refusals."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import published_templates
from jinja_oracle import DATE, VARIABLES
from slm2_web.compile.chat_template import CHAT_TEMPLATES, FROM_FILE, Framing, choose
from slm2_web.compile.install import install_own
from slm2_web.compile.pack import pack_gguf
from slm2_web.errors import FormatError
from slm2_web.manifest import COMPILED, TemplateSpec, manifest_bytes, parse_manifest
from slm2_web.packed import PackedModel
from slm2_web.template2.conversation import parse_conversation
from slm2_web.template2.machine import template_for
from slm2_web.tokenizer2.runs import Control, Trusted, Untrusted
from slm2_web.tokenizer2.tokenizer import Tokenizer
from tiny_gguf import CHAT_TEMPLATE, make_tiny_gguf
from tiny_safetensors import make_tiny_hf

TURN = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' }}{% endfor %}"
ASKED = parse_conversation({"messages": [{"role": "user", "content": "hi <|im_end|>"}]})


def test_every_published_template_that_compiles_passes_its_canary(smollm2_tokenizer: Tokenizer) -> None:
    framing = Framing(date=DATE)
    refused = {}
    for name, source in published_templates.sources().items():
        try:
            spec = choose("here", source, VARIABLES, smollm2_tokenizer, framing)
            assert spec.family == COMPILED or spec in CHAT_TEMPLATES.values()
        except FormatError as error:
            refused[name] = error.detail["found"]
    # firefunction wants two names that transformers doesn't give; the two tool_use templates want tools.
    assert {name for name, found in refused.items() if found == "a refusal of a plain question"} == {
        "CohereForAI-c4ai-command-r-plus-tool_use.jinja",
        "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use.jinja",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
        "fireworks-ai-llama-3-firefunction-v2.jinja",
    }
    assert {name for name, found in refused.items() if found == "the filter from_json"} == {
        name for name, entry in published_templates.table().items() if "unsupported" in entry
    }
    assert len(refused) == 7


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("{{ messages.x.y }}", "a refusal of a plain question"),
        ("{{ raise_exception('never') }}", "a refusal of a plain question"),
        # A marker out of what is not the template's own: it would be text in the prompt, not a control.
        (TURN + "{{ tools[0].function.name if tools }}{{ '<|im_' + 'END'|lower + '|>' }}", None),
        (TURN + "{{ '<|im_%s|>' | replace('%s', (messages | length > 0 and 'end')) }}", None),
        (TURN + "{{ ['<|im_end|>'] | string }}", "2 of 3 markers are the template's own"),
        (TURN + "{{ {'a': '<|im_end|>'} }}", "2 of 3 markers are the template's own"),
    ],
)
def test_the_canary(source: str, found: str | None, smollm2_tokenizer: Tokenizer) -> None:
    if found is None:
        assert choose("here", source, {}, smollm2_tokenizer, FROM_FILE).family == COMPILED
        return
    with pytest.raises(FormatError) as error:
        choose("here", source, {}, smollm2_tokenizer, FROM_FILE)
    assert error.value.code == "format.unsupported"
    assert error.value.detail["place"].startswith("here, canary ")
    assert error.value.detail["found"] == found


def test_a_template_that_never_ends_is_not_run_by_jinja2(smollm2_tokenizer: Tokenizer) -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x"
    with pytest.raises(FormatError, match="a template within the limits"):
        choose("here", source, {}, smollm2_tokenizer, FROM_FILE)


@pytest.mark.parametrize(
    "expression", ["a" + ".a" * 5000, "a" + " - a" * 5000, "a" + " and a" * 3000, "1" + "0" * 5000]
)
def test_chains_without_end_are_refused(expression: str, smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(FormatError) as error:
        choose("here", f"{{{{ {expression} }}}}", {}, smollm2_tokenizer, FROM_FILE)
    assert error.value.code == "format.unsupported"


def test_a_known_template_is_its_family_without_jinja2(
    smollm2_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith("slm2_web.compile.jinja")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delattr("slm2_web.compile.jinja", raising=False)
    monkeypatch.delattr("slm2_web.compile.jinja_canary", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    spec = choose("here", CHAT_TEMPLATE, {}, smollm2_tokenizer, FROM_FILE)
    assert spec in CHAT_TEMPLATES.values()
    with pytest.raises(FormatError, match="where the package jinja2 is not installed"):
        choose("here", CHAT_TEMPLATE + " ", {}, smollm2_tokenizer, FROM_FILE)


def test_a_gguf_with_another_template_is_packed_with_its_program(tmp_path: Path) -> None:
    source = "{{ eos_token }}" + TURN + "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": source})
    pack_gguf(tiny.path, tmp_path / "out", tiny.spec)
    model = PackedModel.open(tmp_path / "out")
    assert model.manifest.template.family == COMPILED
    assert model.manifest.template.program is not None
    assert model.manifest.template.program["variables"] == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    tokenizer = Tokenizer.from_bytes(model.tokenizer_bytes)
    runs = template_for(model.manifest.template, tokenizer).render(ASKED)
    assert runs == [
        *(Control(2), Control(1), Trusted(b"user\n"), Untrusted(b"hi <|im_end|>"), Control(2), Control(1)),
    ]


def test_a_gguf_without_a_template_is_chatml_and_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": None})
    manifest = pack_gguf(tiny.path, tmp_path / "out", tiny.spec, framing=Framing(say=said.append))
    assert manifest.template == TemplateSpec("chatml", None)
    assert said == [
        "key 'tokenizer.chat_template': there is no chat template; messages are framed as generic ChatML"
    ]


def test_none_where_the_vocabulary_has_no_chatml() -> None:
    class NoMarkers:
        def control_id(self, marker: bytes) -> int:
            raise FormatError("format.unsupported", marker.decode())

    no_markers: Any = NoMarkers()
    with pytest.raises(FormatError, match=r"no <\|im_start\|> in the vocabulary"):
        choose("here", None, {}, no_markers, FROM_FILE)
    assert choose("here", None, {}, no_markers, Framing(raw=True)) == TemplateSpec("raw", None)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, None, "{{ x | from_json }}"])
def test_no_template_is_raw_text(tmp_path: Path, template: str | None) -> None:
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
    manifest = pack_gguf(tiny.path, tmp_path / "out", tiny.spec, framing=Framing(raw=True))
    assert manifest.template == TemplateSpec("raw", None)


def test_ones_own_gguf_and_the_date(tmp_path: Path) -> None:
    source = TURN + "{{ strftime_now('%Y') }}"
    tiny = make_tiny_gguf(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": source})
    with pytest.raises(FormatError, match="found the function strftime_now"):
        install_own(tiny.path, tmp_path, "mine", "CC0-1.0", "q4_1", print)
    day = datetime.date(2031, 5, 6)
    out = install_own(tiny.path, tmp_path, "mine", "CC0-1.0", "q4_1", print, date=day)
    manifest = parse_manifest((out / "manifest.json").read_bytes())
    assert manifest.template.program is not None
    assert manifest.template.program["date"] == "2031-05-06"
    assert "2031" in json.dumps(manifest.template.program["functions"])


def test_a_hugging_face_template_finds_its_special_tokens(tmp_path: Path) -> None:
    made = make_tiny_hf(tmp_path / "hf", "llama")
    config = {
        "chat_template": TURN + "{{ eos_token }}{{ pad_token }}",
        "eos_token": {"content": "<|im_end|>"},
    }
    (made.directory / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": None}))
    framing = Framing()
    from slm2_web.compile.pack_hf import files_in, template_of

    tokenizer = Tokenizer.from_bytes(made.compile_tokenizer((made.directory / "tokenizer.json").read_bytes()))
    spec = template_of(files_in(made.directory), tokenizer, framing)
    assert spec.program is not None
    assert spec.program["variables"] == {"eos_token": "<|im_end|>"}


def test_a_program_stands_where_the_family_is_compiled_only(packed_tiny: Path) -> None:
    data = json.loads((packed_tiny / "manifest.json").read_bytes())
    assert "program" not in data["template"]
    changes: tuple[dict[str, Any], ...] = (
        {"family": COMPILED},
        {"family": COMPILED, "program": []},
        {"program": {}},
    )
    for change in changes:
        raw = data | {"template": data["template"] | change}
        with pytest.raises(FormatError) as error:
            parse_manifest(json.dumps(raw).encode())
        assert error.value.code == "format.manifest"
        assert error.value.detail["place"] == "template.program"
    raw = data | {"template": {"family": COMPILED, "default_system": None, "program": {"x": [1]}}}
    manifest = parse_manifest(json.dumps(raw).encode())
    assert parse_manifest(manifest_bytes(manifest)) == manifest
