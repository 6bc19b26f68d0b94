"""The sampler: the order of its steps, reported faults, the draw's distribution, replay."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.errors import DeviceError
from slm2_web.sampling2 import filters
from slm2_web.sampling2.params import SamplingParams, parse_params
from slm2_web.sampling2.rng import draw_bits
from slm2_web.sampling2.sampler import Draw, choose, sample

F32 = NDArray[np.float32]

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "reply_cases.json").read_bytes())
CASES: dict[str, Any] = {case["id"]: case for case in VECTORS["cases"] if case["area"] == "sampler"}


def params(**raw: Any) -> SamplingParams:
    return parse_params(raw, {})


def array(values: object) -> F32:
    return np.array(values, dtype=np.float32)


def draw(logits: F32, p: SamplingParams, *, context: tuple[int, ...] = (), position: int = 0) -> Draw:
    return sample(logits, context, (), p, logits.size, position=position)


# --- reported faults -------------------------------------------------------------------------------------


def case(name: str) -> tuple[Any, Any]:
    return CASES[name]["input"], CASES[name]["expected"]


def test_smp_02_penalty_once_per_distinct_id() -> None:
    given_, expected = case("SMP-02")
    found = filters.penalize_repetition(
        array(given_["logits"]), given_["context_ids"], given_["repetition_penalty"]
    )
    assert found.tolist() == array(expected["logits"]).tolist()


def test_smp_04_presence_and_frequency_count_generated_ids_only() -> None:
    given_, expected = case("SMP-04")
    penalties = given_["presence_penalty"], given_["frequency_penalty"]
    found = filters.penalize_presence(array(given_["logits"]), given_["generated_ids"], *penalties)
    assert found.tolist() == expected["logits"]
    # The whole step: the prompt's ids, which the repetition penalty alone looks at, leave no trace.
    p = params(temperature=1, presence_penalty=penalties[0], frequency_penalty=penalties[1])
    logits = array(given_["logits"])
    drawn = sample(logits, given_["prompt_ids"], given_["generated_ids"], p, logits.size)
    assert drawn.probs.tolist() == filters.softmax(array(expected["logits"])).tolist()


@pytest.mark.parametrize("name", ["SMP-05", "SMP-06"])
def test_smp_05_06_top_p_at_the_threshold(name: str) -> None:
    given_, expected = case(name)
    logits = array(np.log(given_["probs"]))
    assert draw(logits, params(temperature=1, top_p=given_["top_p"])).kept_ids.tolist() == expected["kept"]


def test_smp_08_top_p_at_its_ends() -> None:
    given_, expected = case("SMP-08")
    logits = array(np.log(given_["probs"]))
    for top_p, kept in zip(given_["top_p"], expected["kept"], strict=True):
        assert np.flatnonzero(filters.keep_top_p(logits, top_p)).tolist() == kept


def test_smp_09_top_k_at_its_ends() -> None:
    given_, expected = case("SMP-09")
    for top_k, kept in zip(given_["top_k"], expected["kept"], strict=True):
        assert np.flatnonzero(filters.keep_top_k(array(given_["logits"]), top_k)).tolist() == kept


@pytest.mark.parametrize("text", CASES["SMP-15"]["input"]["logits"])
@pytest.mark.parametrize("temperature", CASES["SMP-15"]["input"]["temperature"])
def test_smp_15_no_token_from_broken_logits(text: str, temperature: float) -> None:
    logits = array([float(word) for word in text.strip("[]").split(",")])
    with pytest.raises(DeviceError, match="position 41") as caught:
        draw(logits, params(temperature=temperature), position=41)
    assert caught.value.code == "device.bad_logits"
    assert caught.value.detail["position"] == 41


def test_finite_logits_whose_sum_is_not() -> None:
    """float32 ends at 3.4e38; each of them is below."""
    logits = array([3e38, -1, 3e38, 2e38, 3.1e38])
    assert draw(logits, params(temperature=0)).id == 4
    with pytest.raises(DeviceError, match="id 1 is nan"):
        draw(array([3e38, np.nan, 3e38, 3e38]), params(temperature=0))


def test_smp_16_rows_without_a_token_are_never_sampled() -> None:
    given_, expected = case("SMP-16")
    logits = np.zeros(given_["n_logits"], dtype=np.float32)
    logits[given_["argmax_at"]], logits[given_["second_at"]] = 30, 20
    for p in (params(), params(temperature=1, top_k=1), params(temperature=0.01)):
        found = sample(logits, (), (), p, expected["valid_ids"], position=7)
        assert found.id == expected["token"]
        assert found.kept_ids.max() < expected["valid_ids"]


# --- order and values ------------------------------------------------------------------------------------


def oracle(logits: F32, context: tuple[int, ...], p: SamplingParams, n_tokens: int) -> dict[int, float]:
    """Kept ids and probabilities: each step on the whole vector, removed ids at -inf."""
    values = logits.copy()
    for i in set(context):
        factor = np.float32(p.repetition_penalty)
        values[i] = values[i] * factor if values[i] < 0 else values[i] / factor
    values[n_tokens:] = -np.inf
    values = values / np.float32(p.temperature)
    if p.top_k:
        kth = np.sort(values)[max(values.size - p.top_k, 0)]
        values[values < kth] = -np.inf
    if p.top_p < 1:
        order = np.argsort(values, kind="stable")
        probs = filters.softmax(values)
        total = 0
        for i in order[:-1]:
            total += int(filters.weights(probs[i : i + 1])[0])
            if np.int64(total).astype(np.float32) <= np.float32(1 - p.top_p) * np.float32(2.0**62):
                values[i] = -np.inf
    if p.min_p:
        probs = filters.softmax(values)
        values[probs < np.float32(p.min_p) * probs.max()] = -np.inf
    probs = filters.softmax(values)
    return {i: float(probs[i]) for i in range(n_tokens) if values[i] > -np.inf}


@given(
    st.lists(
        st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-1.0, 0.0, 1.0])), min_size=3, max_size=60
    ).map(array),
    st.lists(st.integers(0, 2), max_size=6).map(tuple),
    st.fixed_dictionaries(
        {
            "temperature": st.floats(0.05, 4),
            "top_k": st.integers(0, 70),
            "top_p": st.one_of(st.just(1.0), st.floats(0.01, 1)),
            "min_p": st.one_of(st.just(0.0), st.floats(0, 1)),
            "repetition_penalty": st.one_of(st.just(1.0), st.floats(0.5, 2)),
            "seed": st.integers(0, 2**64 - 1),
        }
    ),
    st.integers(0, 10**6),
    st.integers(0, 2),
)
def test_the_fixed_order(
    logits: F32, context: tuple[int, ...], raw: dict[str, Any], position: int, less: int
) -> None:
    """Working on the kept ids alone gives what working on the whole vector gives."""
    p = params(**raw)
    found = sample(logits, context, (), p, logits.size - less, position=position)
    expected = oracle(logits, context, p, logits.size - less)
    assert dict(zip(found.kept_ids.tolist(), found.probs.tolist(), strict=True)) == expected
    assert found.kept_ids.tolist() == sorted(expected)
    assert found.id in expected
    assert expected[found.id] > 0
    # the draw, by the definition in the docs
    mass = [round(q * 2**62) for q in expected.values()]
    target = draw_bits(p.seed, position) * sum(mass) // 2**53
    running = 0
    for token_id, w in zip(expected, mass, strict=True):
        running += w
        if running > target:
            assert found.id == token_id
            break


def test_greedy_takes_the_lowest_of_equals_and_draws_nothing() -> None:
    logits = array([1, 3, 3, 2])
    for seed in range(20):
        found = draw(logits, params(seed=seed), position=seed)
        assert (found.id, found.kept_ids.tolist(), found.probs.tolist()) == (1, [1], [1.0])


def test_greedy_comes_after_the_penalty() -> None:
    logits = array([2.2, 2.1, -1])
    assert draw(logits, params(repetition_penalty=1.1), context=(0,)).id == 1
    assert draw(logits, params()).id == 0


def test_parameters_that_drive_logits_to_infinity_are_an_error_not_a_token() -> None:
    huge = array([3e38, 1.0])
    for p in (params(temperature=0.5), params(repetition_penalty=0.5)):
        with pytest.raises(DeviceError, match="inf"):
            draw(huge, p, context=(0,))
    # Falling to -inf only means probability 0.
    assert draw(array([-3e38, 1.0]), params(temperature=0.5)).probs.tolist() == [0.0, 1.0]


def test_extreme_but_finite_logits() -> None:
    biggest = float(np.finfo(np.float32).max)
    tiny = float(np.float32(1e-45))
    assert draw(array([biggest, -biggest]), params(temperature=1)).id == 0
    assert draw(array([tiny, -tiny, 0.0]), params()).id == 0
    assert draw(array([0.0, -0.0]), params()).id == 0
    assert draw(array([5.0]), params(temperature=1, top_k=1, top_p=0.5, min_p=1)).id == 0


# --- the draw --------------------------------------------------------------------------------------------


def test_chi_square_of_many_draws() -> None:
    logits = array(np.log([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02]))
    probs = filters.softmax(logits)
    n = 60_000
    counts = Counter(choose(probs, draw_bits(2024, position)) for position in range(n))
    chi_square = sum((counts[i] - n * float(q)) ** 2 / (n * float(q)) for i, q in enumerate(probs))
    assert chi_square < 24.3  # 7 degrees of freedom, 0.1 %
    # and over seeds at one position
    counts = Counter(choose(probs, draw_bits(seed, 5)) for seed in range(n))
    assert sum((counts[i] - n * float(q)) ** 2 / (n * float(q)) for i, q in enumerate(probs)) < 24.3


def test_choose_at_its_ends() -> None:
    probs = array([0.0, 0.5, 0.0, 0.5, 0.0])
    assert choose(probs, 0) == 1
    assert choose(probs, 2**53 - 1) == 3
    assert choose(probs, 2**52 - 1) == 1
    assert choose(probs, 2**52) == 3


def test_the_position_alone_decides() -> None:
    logits = np.random.default_rng(6).normal(0, 2, 1000).astype(np.float32)
    p = params(temperature=1, seed=11)
    in_order = [draw(logits, p, position=i).id for i in range(200)]
    backwards = [draw(logits, p, position=i).id for i in reversed(range(200))]
    assert in_order == backwards[::-1]
    assert len(set(in_order)) > 50


def test_two_seeds_agree_no_more_than_chance() -> None:
    logits = np.zeros(256, dtype=np.float32)
    a = [draw(logits, params(temperature=1, seed=1), position=i).id for i in range(2000)]
    b = [draw(logits, params(temperature=1, seed=2), position=i).id for i in range(2000)]
    assert sum(x == y for x, y in zip(a, b, strict=True)) < 30


def test_draws_are_pinned() -> None:
    """The same ids on every platform, for ever: CPython and Pyodide 314 gave these."""
    # Logits from integers by exact steps.
    logits = ((np.arange(49_152, dtype=np.int64) * 7919 % 10007) / 1024).astype(np.float32)
    settings = [
        {"temperature": 1.0},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1},
        {"temperature": 1.3, "top_p": 0.999},
    ]
    found = [
        [
            sample(logits, (9, 99, 999), (), params(seed=2**63 + 5, **s), 49_000, position=position).id
            for position in range(5)
        ]
        for s in settings
    ]
    assert found == [
        [537, 34114, 10171, 4462, 16808],
        [1040, 33141, 11047, 2080, 14167],
        [537, 34110, 10170, 4458, 16808],
        [537, 34114, 10175, 4462, 16813],
    ]


def test_speed() -> None:
    """A step at the publisher's defaults stays far below a forward pass: 1.2 ms measured, 25 allowed."""
    logits = np.random.default_rng(7).normal(0, 3, 151_936).astype(np.float32)
    p = params(temperature=0.6, top_k=20, top_p=0.95)
    best = math.inf
    for position in range(5):
        start = time.perf_counter()
        sample(logits, range(2000), (), p, 151_669, position=position)
        best = min(best, time.perf_counter() - start)
    assert best < 0.025
