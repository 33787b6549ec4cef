from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.study import Run
from lab.worker.data.sampling import Sampler

TOKENS = np.arange(500, dtype=np.uint16)
MODEL = {"kind": "gpt", "layers": 1, "heads": 1, "width": 2, "block_size": 8}


def run(world_size: int, grad_accum: int, micro_batch_size: int, seed: int = 7) -> Run:
    batch = {"world_size": world_size, "grad_accum": grad_accum, "micro_batch_size": micro_batch_size}
    return Run(model=MODEL, global_batch_size=world_size * grad_accum * micro_batch_size, seed=seed, eval_batches=2, **batch)


def global_batch(run: Run, step: int) -> npt.NDArray[np.int64]:
    samplers = [Sampler(TOKENS, run=run, rank=rank) for rank in range(run.world_size)]
    return np.concatenate([sampler.micro_batch(step, micro) for sampler in samplers for micro in range(run.grad_accum)])


def evaluation(run: Run) -> npt.NDArray[np.int64]:
    return np.concatenate([part for rank in range(run.world_size) for part in Sampler(TOKENS, run=run, rank=rank).evaluation()])


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**31), st.integers(0, 10**8))
@settings(max_examples=60, deadline=None)
def test_neither_ranks_nor_accumulation_change_the_samples_of_a_step(
    world: int, accum: int, micro: int, seed: int, step: int
) -> None:
    split, whole = run(world, accum, micro, seed), run(1, 1, world * accum * micro, seed)
    assert np.array_equal(global_batch(split, step), global_batch(whole, step))
    assert np.array_equal(evaluation(split), evaluation(whole))


def test_a_sample_is_consecutive_tokens_from_anywhere() -> None:
    batches = np.concatenate([global_batch(run(1, 1, 64), step) for step in range(50)])
    assert batches.shape == (3200, 9) and batches.dtype == np.int64
    assert (np.diff(batches, axis=1) == 1).all()
    assert batches.min() == 0 and batches.max() == 499


def test_steps_and_seeds_draw_differently_and_can_be_drawn_again() -> None:
    sampler = Sampler(TOKENS, run=run(1, 1, 16), rank=0)
    first, second = sampler.micro_batch(0, 0), sampler.micro_batch(1, 0)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, sampler.micro_batch(0, 0))
    assert not np.array_equal(first, Sampler(TOKENS, run=run(1, 1, 16, seed=8), rank=0).micro_batch(0, 0))


def test_held_out_samples_are_the_same_at_every_seed() -> None:
    assert np.array_equal(evaluation(run(1, 1, 16)), evaluation(run(1, 1, 16, seed=8)))


@pytest.mark.parametrize("tokens", [9, 10])
def test_a_text_of_one_sample_is_enough(tokens: int) -> None:
    assert Sampler(TOKENS[:tokens], run=run(1, 1, 4), rank=0).micro_batch(0, 0).max() < tokens
