from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config.run import Run
from lab.worker.data.dataset import Sampler, Windows

COUNT = 492
MODEL = {"kind": "gpt", "layers": 1, "heads": 1, "width": 2, "block_size": 8}


def run(world_size: int, grad_accum: int, micro_batch_size: int, seed: int = 7) -> Run:
    batch = {
        "world_size": world_size,
        "grad_accum": grad_accum,
        "micro_batch_size": micro_batch_size,
    }
    return Run(
        model=MODEL,
        global_batch_size=world_size * grad_accum * micro_batch_size,
        seed=seed,
        eval_batches=2,
        **batch,
    )


def sampler(run: Run, rank: int = 0, *, epochs: bool = False) -> Sampler:
    return Sampler(COUNT, run=run, rank=rank, epochs=epochs)


def global_batch(run: Run, step: int, *, epochs: bool = False) -> npt.NDArray[np.int64]:
    samplers = [sampler(run, rank, epochs=epochs) for rank in range(run.world_size)]
    return np.concatenate(
        [
            sampler.micro_batch(step, micro)
            for sampler in samplers
            for micro in range(run.grad_accum)
        ]
    )


def evaluation(run: Run, *, epochs: bool = False) -> npt.NDArray[np.int64]:
    return np.concatenate(
        [
            part
            for rank in range(run.world_size)
            for part in sampler(run, rank, epochs=epochs).evaluation()
        ]
    )


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 2**31),
    st.integers(0, 10**8),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_neither_ranks_nor_accumulation_change_the_samples_of_a_step(
    world: int, accum: int, micro: int, seed: int, step: int, epochs: bool
) -> None:
    split, whole = run(world, accum, micro, seed), run(1, 1, world * accum * micro, seed)
    assert np.array_equal(
        global_batch(split, step, epochs=epochs), global_batch(whole, step, epochs=epochs)
    )
    assert np.array_equal(evaluation(split, epochs=epochs), evaluation(whole, epochs=epochs))


def test_a_sample_is_consecutive_tokens_from_anywhere() -> None:
    samples = Windows(np.arange(500, dtype=np.uint16), block_size=8)
    assert len(samples) == COUNT
    drawn = np.concatenate([global_batch(run(1, 1, 64), step) for step in range(50)])
    inputs, targets = samples.take(drawn)
    assert inputs.shape == targets.shape == (3200, 8) and inputs.dtype == targets.dtype == np.int64
    assert (targets - inputs == 1).all() and (np.diff(inputs, axis=1) == 1).all()
    assert inputs.min() == 0 and targets.max() == 499
    one, taken = samples[7], samples.take(np.array([7]))
    assert np.array_equal(one[0], taken[0][0]) and np.array_equal(one[1], taken[1][0])


def test_steps_and_seeds_draw_differently_and_can_be_drawn_again() -> None:
    drawn = sampler(run(1, 1, 16))
    first, second = drawn.micro_batch(0, 0), drawn.micro_batch(1, 0)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, drawn.micro_batch(0, 0))
    assert not np.array_equal(first, sampler(run(1, 1, 16, seed=8)).micro_batch(0, 0))


@pytest.mark.parametrize("batch", [16, 123, 492, 700])
def test_an_epoch_sees_every_sample_once_and_each_epoch_in_its_own_order(batch: int) -> None:
    draws = sampler(run(1, 1, batch), epochs=True)
    steps = -(-3 * COUNT // batch)
    epochs = np.concatenate([draws.micro_batch(step, 0) for step in range(steps)])[
        : 3 * COUNT
    ].reshape(3, COUNT)
    assert (np.sort(epochs, axis=1) == np.arange(COUNT)).all()
    assert not np.array_equal(epochs[0], epochs[1]) and not np.array_equal(
        epochs[0], np.arange(COUNT)
    )


def test_held_out_samples_are_the_same_at_every_seed() -> None:
    assert np.array_equal(evaluation(run(1, 1, 16)), evaluation(run(1, 1, 16, seed=8)))


@pytest.mark.parametrize("tokens", [9, 10])
def test_a_text_of_one_sample_is_enough(tokens: int) -> None:
    samples = Windows(np.arange(tokens, dtype=np.uint16), block_size=8)
    assert len(samples) == tokens - 8
    assert Sampler(len(samples), run=run(1, 1, 4), rank=0, epochs=False).micro_batch(
        0, 0
    ).max() < len(samples)
