"""Parameters: every range, every refusal, defaults, and the way through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm2_web.errors import InputError
from slm2_web.sampling2.params import MAX_SEED, NEUTRAL, PROFILE_NAMES, RULES, SamplingParams, parse_params

GOOD: list[tuple[str, Any, Any]] = [
    ("temperature", 0, 0.0),
    ("temperature", -0.0, 0.0),
    ("temperature", 1e-6, 1e-6),
    ("temperature", 1000, 1000.0),
    ("top_k", 0, 0),
    ("top_k", 2**31 - 1, 2**31 - 1),
    ("top_p", 1, 1.0),
    ("top_p", 5e-324, 5e-324),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("repetition_penalty", 0.001, 0.001),
    ("repetition_penalty", 1000, 1000.0),
    ("presence_penalty", -2, -2.0),
    ("presence_penalty", 2, 2.0),
    ("frequency_penalty", -0.0, 0.0),
    ("banned_ids", [], ()),
    ("banned_ids", [5, 2**31 - 1, 0, 5], (0, 5, 2**31 - 1)),
    ("profile", "llama.cpp", "llama.cpp"),
    ("logprobs", None, None),
    ("logprobs", 0, 0),
    ("logprobs", 20, 20),
    ("seed", 0, 0),
    ("seed", MAX_SEED, MAX_SEED),
    ("seed", str(MAX_SEED), MAX_SEED),
    ("seed", "0", 0),
    ("max_tokens", 1, 1),
    ("max_tokens", 1 << 20, 1 << 20),
    ("max_reasoning_tokens", None, None),
    ("max_reasoning_tokens", 0, 0),
    ("response_format", None, None),
    ("response_format", '{"type":"text"}', '{"type":"text"}'),
    ("response_format", b'{"a": 1.0}', '{"a": 1.0}'),
    ("response_format", {"type": "regex", "pattern": "é"}, '{"type": "regex", "pattern": "é"}'),
    ("invalid_utf8", "show", "show"),
    ("stop", [], ()),
    ("stop", ["a"] * 16, (b"a",) * 16),
    ("stop", ["é", b"\xc3\xa9"], (b"\xc3\xa9", b"\xc3\xa9")),
    ("stop", ("x" * 1024,), (b"x" * 1024,)),
]

INF, NAN = float("inf"), float("nan")
HUGE = 10**400  # no float
BAD: dict[str, list[Any]] = {
    "temperature": [HUGE, -HUGE, -0.1, 1e-7, 1000.1, INF, NAN, "0", None, True, []],
    "top_k": [HUGE, -1, 2**31, 1.0, "1", None, False],
    "top_p": [HUGE, -HUGE, 0, 0.0, -0.1, 1.0000001, NAN, "1", None, True],
    "min_p": [HUGE, -HUGE, -1e-9, 1.01, NAN, None],
    "repetition_penalty": [HUGE, -HUGE, 0, 0.0, -1, 1e-4, 1001, INF, None, True],
    "presence_penalty": [HUGE, -HUGE, -2.1, 2.1, NAN, INF, "0", None, True],
    "frequency_penalty": [HUGE, -HUGE, -2.1, 2.1, NAN, None],
    "banned_ids": [None, 1, "1", [-1], [2**31], [1.0], [True], [None], list(range(1025)), {}],
    "profile": ["", "Transformers", "llama", None, 1, ["transformers"], {}],
    "logprobs": [-1, 21, 1.0, True, "5", []],
    "seed": [
        HUGE,
        str(HUGE),
        -1,
        MAX_SEED + 1,
        str(MAX_SEED + 1),
        "",
        "01",
        "-1",
        "+1",
        " 1",
        "1_0",
        "\u0663",
        1.0,
        None,
    ],
    "max_tokens": [HUGE, 0, -1, (1 << 20) + 1, 1.0, None, True],
    "max_reasoning_tokens": [HUGE, -1, (1 << 20) + 1, 1.0, True, "1"],
    "response_format": ["", 1, [], "\ud800", b"\xff", {"a": NAN}, {"a": {1, 2}}, "x" * (1 << 18) + "x"],
    "invalid_utf8": ["", "replace", None, 1, []],
    "stop": ["a", [""], [b""], ["a"] * 17, ["x" * 1025], [1], [None], ["\ud800"], [b"\xff"], None, {}],
}


@pytest.mark.parametrize(("name", "value", "checked"), GOOD)
def test_accepted(name: str, value: Any, checked: Any) -> None:
    params = parse_params({name: value}, {})
    assert getattr(params, name) == checked
    assert type(getattr(params, name)) is type(checked)


@pytest.mark.parametrize(("name", "value"), [(name, v) for name, values in BAD.items() for v in values])
@pytest.mark.parametrize("source", ["request", "defaults"])
def test_refused_with_place_found_and_allowed(name: str, value: Any, source: str) -> None:
    raw, defaults = ({name: value}, {}) if source == "request" else ({}, {name: value})
    with pytest.raises(InputError) as caught:
        parse_params(raw, defaults)
    error = caught.value
    assert error.code == "input.params"
    assert error.detail == {
        "place": f"params.{name}",
        "found": error.detail["found"],
        "allowed": RULES[name].allowed,
    }
    assert all(part in error.message for part in error.detail.values())
    assert len(error.message) < 400
    json.dumps(error.as_json(), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("name", ["Temperature", "topK", "", "stop_strings", "\ud800"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="unknown parameter"):
        parse_params({name: 1}, {})
    with pytest.raises(InputError, match="unknown parameter"):
        parse_params({}, {name: 1})


def test_request_over_defaults_over_neutral() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    params = parse_params({"top_k": 0}, defaults)
    assert (params.temperature, params.top_k, params.top_p) == (0.6, 0, 1.0)
    assert set(NEUTRAL) == set(RULES) == set(SamplingParams.__slots__)


PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.one_of(st.just(0.0), st.floats(1e-6, 1000)),
        "top_k": st.integers(0, 2**31 - 1),
        "top_p": st.floats(0, 1, exclude_min=True),
        "min_p": st.floats(0, 1),
        "repetition_penalty": st.floats(0.001, 1000),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "banned_ids": st.lists(st.integers(0, 2**31 - 1), max_size=8),
        "profile": st.sampled_from(PROFILE_NAMES),
        "logprobs": st.one_of(st.none(), st.integers(0, 20)),
        "seed": st.integers(0, MAX_SEED),
        "max_tokens": st.integers(1, 1 << 20),
        "max_reasoning_tokens": st.one_of(st.none(), st.integers(0, 1 << 20)),
        "response_format": st.one_of(st.none(), st.just({"type": "json_object"})),
        "invalid_utf8": st.sampled_from(["end", "show"]),
        "stop": st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20), max_size=16),
    },
)


@given(PARAMS)
def test_json_gives_the_same_parameters_back(raw: dict[str, Any]) -> None:
    params = parse_params(raw, {})
    text = json.dumps(params.as_json())
    assert parse_params(json.loads(text), {}) == params
    # and also where every number is a double, as in JavaScript
    as_js = json.loads(text, parse_int=lambda digits: int(float(digits)))
    assert parse_params(as_js, {}) == params
