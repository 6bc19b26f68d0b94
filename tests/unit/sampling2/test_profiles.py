"""Masks, presence and frequency penalties, and the profile of llama.cpp, against slow oracles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from slm2_web.errors import InputError
from slm2_web.sampling2 import filters
from slm2_web.sampling2.params import PROFILE_NAMES, SamplingParams, parse_params
from slm2_web.sampling2.sampler import PROFILES, sample

F32 = NDArray[np.float32]
f32 = np.float32


def params(**raw: Any) -> SamplingParams:
    return parse_params(raw, {})


def array(values: Sequence[float]) -> F32:
    return np.array(values, dtype=np.float32)


logits = st.lists(
    st.one_of(st.floats(-20, 20, width=32), st.sampled_from([-1.0, 0.0, -0.0, 1.0])), min_size=1, max_size=60
).map(array)
share = st.one_of(st.floats(0, 1, exclude_min=True), st.sampled_from([1e-45, 0.25, 0.5, 0.95, 1.0]))


def test_every_profile_has_its_steps() -> None:
    assert tuple(PROFILES) == PROFILE_NAMES


# --- penalties on generated ids --------------------------------------------------------------------------


@given(logits, st.lists(st.integers(0, 70), max_size=40), st.floats(-2, 2), st.floats(-2, 2))
def test_presence_and_frequency_equal_the_oracle(
    values: F32, generated: list[int], presence: float, frequency: float
) -> None:
    before = values.copy()
    counts = Counter(generated)
    expected = [
        v - f32(counts[i]) * f32(frequency) - f32(presence) if i in counts else v
        for i, v in enumerate(values)
    ]
    found = filters.penalize_presence(values, generated, presence, frequency)
    assert found.tobytes() == np.array(expected, np.float32).tobytes()
    assert values.tobytes() == before.tobytes()


def test_they_count_generated_ids_and_not_the_prompt() -> None:
    values = array([2.0, 1.5])
    p = params(presence_penalty=1)
    assert sample(values, [0, 0], [], p, 2).id == 0
    assert sample(values, [], [0], p, 2).id == 1
    # one occurrence costs 0.4, two cost 0.8
    p = params(frequency_penalty=0.4)
    assert sample(values, [], [0], p, 2).id == 0
    assert sample(values, [], [0, 0], p, 2).id == 1


def test_penalties_come_one_after_the_other() -> None:
    values = array([3.0, 1.0])
    p = params(repetition_penalty=2, presence_penalty=1, frequency_penalty=0.5, temperature=1)
    found = sample(values, [], [0, 0], p, 2)
    assert found.probs.tolist() == filters.softmax(array([3 / 2 - 2 * 0.5 - 1, 1.0])).tolist()


# --- masks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0, 1])
def test_banned_ids_are_never_drawn(temperature: float) -> None:
    values = array([5.0, 4.0, 3.0, 2.0])
    p = params(temperature=temperature, banned_ids=[0, 2, 99])
    draws = {sample(values, [], [], p, 4, position=i).id for i in range(60)}
    assert draws == ({1} if temperature == 0 else {1, 3})


def test_a_ban_takes_no_place_in_top_k() -> None:
    found = sample(array([5.0, 4.0, 3.0]), [], [], params(temperature=1, top_k=2, banned_ids=[0]), 3)
    assert found.kept_ids.tolist() == [1, 2]


def test_a_caller_s_mask_joins_the_bans() -> None:
    allowed = np.array([True, False, True, True])
    found = sample(array([5.0, 4.0, 3.0, 2.0]), [], [], params(banned_ids=[0]), 4, allowed=allowed)
    assert found.id == 2
    assert allowed.tolist() == [True, False, True, True]


def test_nothing_left_is_refused() -> None:
    for p in (params(banned_ids=[0, 1]), params(banned_ids=[0, 1], temperature=1)):
        with pytest.raises(InputError, match="nothing is left") as caught:
            sample(array([1.0, 2.0, 3.0]), [], [], p, 2)
        assert caught.value.code == "input.params"


# --- the profile of llama.cpp ----------------------------------------------------------------------------


def oracle(values: F32, p: SamplingParams) -> list[int]:
    """The kept ids by that program's definitions: sort once, cut three times, temperature last."""
    order = sorted(range(values.size), key=lambda i: (-values[i], i))
    if p.top_k:
        order = order[: p.top_k]
    if p.top_p < 1:
        ascending = sorted(order)
        probs = dict(zip(ascending, filters.softmax(values[ascending]), strict=True))
        total, count = 0, 0
        for i in order:
            total += round(float(probs[i]) * 2**62)
            count += 1
            if f32(float(f32(total))) >= f32(p.top_p) * f32(2.0**62):
                break
        order = order[:count]
    if p.min_p and f32(p.min_p) > 0:
        with localcontext(prec=40):
            distance = f32(float(Decimal(float(f32(p.min_p))).ln()))
        order = [i for i in order if values[i] >= values[order[0]] + distance]
    return sorted(order)


@given(logits, st.integers(0, 70), share, st.one_of(st.just(0.0), share), st.floats(0.05, 4))
def test_llama_cpp_equals_the_oracle(
    values: F32, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    p = params(profile="llama.cpp", top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    found = sample(values, [], [], p, values.size)
    assert found.kept_ids.tolist() == oracle(values, p)
    expected = filters.softmax(values[found.kept_ids] / f32(temperature))
    assert found.probs.tobytes() == expected.tobytes()
    assert found.id in found.kept_ids


def test_the_profiles_differ_as_the_docs_say() -> None:
    ties = array([1.0, 1.0, 1.0, 0.0])
    for profile, kept in (("transformers", [0, 1, 2]), ("llama.cpp", [0, 1])):
        p = params(profile=profile, temperature=1, top_k=2)
        assert sample(ties, [], [], p, 4).kept_ids.tolist() == kept
    # One removes up to 1 - p from below, the other keeps until p is reached.
    halves = array(np.log([0.5, 0.25, 0.25]).tolist())
    for profile, kept in (("transformers", [0]), ("llama.cpp", [0])):
        p = params(profile=profile, temperature=1, top_p=0.5)
        assert sample(halves, [], [], p, 3).kept_ids.tolist() == kept
    # A high temperature flattens before top-p in one, after it in the other.
    steep = array([4.0, 2.0, 0.0])
    for profile, kept in (("transformers", [0, 1, 2]), ("llama.cpp", [0, 1])):
        p = params(profile=profile, temperature=4, top_p=0.9)
        assert sample(steep, [], [], p, 3).kept_ids.tolist() == kept


@given(logits, st.integers(1, 70))
def test_keep_largest_keeps_exactly_k(values: F32, k: int) -> None:
    mask = filters.keep_largest(values, k)
    assert np.count_nonzero(mask) == min(k, values.size)
    order = sorted(range(values.size), key=lambda i: (-values[i], i))
    assert np.flatnonzero(mask).tolist() == sorted(order[:k])


def test_min_p_near_zero_keeps_all() -> None:
    values = array([0.0, -80.0, -200.0])
    assert filters.keep_near_largest(values, 1e-300).all()
    assert filters.keep_near_largest(values, 1e-45).tolist() == [True, True, False]
    assert filters.keep_near_largest(values, math.exp(-80) * 1.001).tolist() == [True, False, False]
