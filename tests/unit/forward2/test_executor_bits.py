"""The same bits in every executor, however a conversation came about: chunks, 64 steps, a cache kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from bit_matrix import CHUNKS, Journey, Trip, cold, digest, executors, journey, travel, with_extremes
from feeding import feed
from network_cases import packed_case
from slm2_web.forward2.executor import Executor
from slm2_web.forward2.native_wasm import native_wasm_executor
from slm2_web.forward2.reference import ReferenceExecutor
from slm2_web.packed import PackedModel

N_STEPS = 64
MODELS = ("qwen3", "qwen3-untied", "qwen2", "qwen2-q4_0", "llama")

Packed = Callable[[str], PackedModel]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A random model, packed."""

    def get(name: str) -> PackedModel:
        return packed_case(name, tmp_path_factory.mktemp(name))[1]

    return get


def by_reference(model: PackedModel, way: Journey) -> Trip:
    """The reference's trip, whose return is checked against an empty cache."""
    reference = ReferenceExecutor(model, max_seq_len=way.n_ids, max_chunk_tokens=max(CHUNKS))
    trip = travel(reference, way, max(CHUNKS))
    assert cold(reference, way, trip) == trip.digests[way.n_steps + 1]
    return trip


def compare_all(model: PackedModel) -> Trip:
    """Every executor's bits with the reference's: prompts in chunks of every size, the whole in one of them.

    tests/bit_matrix.py goes all the way in every size, with a real model too.
    """
    way = journey(model.manifest.config.vocab_size, N_STEPS)
    want = by_reference(model, way)
    made = executors(model, max_seq_len=way.n_ids, max_chunk_tokens=max(CHUNKS))
    for (name, make), size in zip(made.items(), itertools.cycle((7, 80, 32, 1))):
        executor = asyncio.run(make())
        assert travel(executor, way, size) == want, (name, size)
        for chunk in set(CHUNKS) - {size}:
            assert cold_prompt(executor, way, chunk) == want.digests[0], (name, chunk)
    return want


def cold_prompt(executor: Executor, way: Journey, chunk: int) -> str:
    """The digest after the prompt."""
    executor.truncate(0)
    return digest(feed(executor, way.prompt, chunk))


@pytest.mark.parametrize("name", MODELS)
def test_every_executor_in_any_chunks(name: str, packed: Packed) -> None:
    trip = compare_all(packed(name))
    assert len(set(trip.digests)) == len(trip.digests) == N_STEPS + 1 + N_STEPS // 8 + 1


@pytest.mark.parametrize("name", ["qwen3", "qwen2-q4_0", "llama"])
def test_extreme_weights(name: str, packed: Packed) -> None:
    """Other bits than without them, and not the same whatever the ids: extremes that hide nothing."""
    model = packed(name)
    trip = compare_all(with_extremes(model))
    way = journey(model.manifest.config.vocab_size, N_STEPS)
    assert len(set(trip.digests)) > N_STEPS // 2
    assert trip.digests[0] != cold_prompt(ReferenceExecutor(model, max_seq_len=96), way, 32)


def test_smollm2_on_any_number_of_threads(packed_smollm2: Path) -> None:
    """64 steps on four builds of wasm; the reference reads what they said in one go and agrees at its end."""
    model = PackedModel.open(packed_smollm2)
    way = journey(model.manifest.config.vocab_size, N_STEPS, n_prompt=40)
    trips = []
    for n_threads, chunk in ((0, 40), (1, 1), (2, 7), (3, 32)):
        made = native_wasm_executor(model, n_threads=n_threads, max_seq_len=way.n_ids, max_chunk_tokens=40)
        trips.append(travel(asyncio.run(made), way, chunk))
    assert trips == trips[:1] * 4
    reference = ReferenceExecutor(model, max_seq_len=way.n_ids, max_chunk_tokens=way.n_ids)
    assert cold(reference, way, trips[0]) == trips[0].digests[way.n_steps + 1]
