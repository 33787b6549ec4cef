"""Generation: the cache changes nothing, and what is drawn follows probabilities and seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from factories import record
from hypothesis import given
from hypothesis import strategies as st
from studies import SMALL_STUDY, StudyMaker

import lab
from lab.config.models import GPT as Config
from lab.config.run import Run
from lab.errors import InputError
from lab.records.store import Store, write_record
from lab.worker.checkpoint import Checkpoint
from lab.worker.data.dataset import GENERATION, random_numbers
from lab.worker.inference.generate import Sampling, choose, complete, continuations
from lab.worker.models.gpt import GPT, Cache

VOCABULARY = 50


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    model = (
        GPT(Config(layers=3, heads=2, width=32, block_size=40), vocab_size=VOCABULARY)
        .eval()
        .double()
    )
    with (
        torch.no_grad()
    ):  # far from its start, so that greedy tokens vary; in fp64, so that rounding flips none
        for parameter in model.blocks.parameters():
            parameter.mul_(20)
        model.positions.weight.mul_(100)
    return model


def prompts(samples: int, length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (samples, length), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def without_cache(
    model: GPT, prompts: torch.Tensor, *, new_tokens: int, sampling: Sampling
) -> torch.Tensor:
    """Each token from a forward pass over the whole sequence before it."""
    rows = (random_numbers(sampling.seed, GENERATION, row) for row in range(len(prompts)))
    uniform = torch.from_numpy(np.stack([row.random(new_tokens) for row in rows]))
    tokens = prompts
    for number in range(new_tokens):
        chosen = choose(model(tokens)[:, -1], uniform[:, number], sampling)
        tokens = torch.cat([tokens, chosen[:, None]], dim=1)
    return tokens[:, prompts.shape[1] :]


@pytest.mark.parametrize(
    "how", [Sampling(), Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=3)]
)
@pytest.mark.parametrize(("samples", "length"), [(1, 1), (1, 12), (5, 1), (5, 12)])
def test_the_cache_changes_no_token(model: GPT, samples: int, length: int, how: Sampling) -> None:
    given = prompts(samples, length)
    tokens = continuations(model, given, new_tokens=25, sampling=how)
    assert torch.equal(tokens, without_cache(model, given, new_tokens=25, sampling=how))
    assert len(tokens.unique()) > 5  # not one token for ever


def test_the_cache_gives_the_logits_of_the_whole_sequence(model: GPT) -> None:
    tokens = prompts(3, 10)
    cache = Cache(3, 10)
    with torch.inference_mode():
        first = model.extend(tokens[:, :6], cache)
        rest = [model.extend(tokens[:, number : number + 1], cache) for number in range(6, 10)]
        whole = model(tokens)
    assert cache.length == 10
    torch.testing.assert_close(
        torch.stack([first, *rest], dim=1), whole[:, 5:], rtol=1e-4, atol=1e-4
    )


def test_a_prompt_gets_the_same_text_whatever_its_batch(model: GPT) -> None:
    how = Sampling(temperature=1.0, seed=7)
    whole = continuations(model, prompts(6, 5), new_tokens=10, sampling=how)
    # Prompts of other lengths, which form batches of their own, may lie between those of a batch.
    for numbers in ([3, 4, 5], [0, 2, 5], [1]):
        part = continuations(
            model, prompts(6, 5)[numbers], new_tokens=10, sampling=how, numbers=numbers
        )
        assert torch.equal(whole[numbers], part)
    assert not torch.equal(
        whole,
        continuations(
            model, prompts(6, 5), new_tokens=10, sampling=Sampling(temperature=1.0, seed=8)
        ),
    )


def test_drawn_tokens_follow_the_probabilities() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(10_000, 4)
    uniform = torch.rand(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def shares(**how: float) -> list[float]:
        drawn = choose(logits, uniform, Sampling(**{"temperature": 1.0, **how}))
        return (drawn.bincount(minlength=4) / len(drawn)).tolist()

    assert shares() == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.02)
    assert shares(top_k=2) == pytest.approx([0.625, 0.375, 0, 0], abs=0.02)
    assert shares(top_p=0.6) == pytest.approx([0.625, 0.375, 0, 0], abs=0.02)
    assert shares(top_p=1e-9) == [1, 0, 0, 0]
    hot = torch.tensor([0.5, 0.3, 0.15, 0.05]).sqrt()
    assert shares(temperature=2.0) == pytest.approx((hot / hot.sum()).tolist(), abs=0.02)


@given(
    st.integers(1, 8),
    st.floats(0.05, 1.0),
    st.floats(0.1, 3.0),
    st.floats(0, 0.999999999),
    st.integers(0, 1000),
)
def test_no_token_outside_the_top_is_ever_drawn(
    top_k: int, top_p: float, temperature: float, uniform: float, seed: int
) -> None:
    logits = torch.randn(1, 8, generator=torch.Generator().manual_seed(seed)) * 4
    chosen = choose(
        logits, torch.tensor([uniform], dtype=torch.float64), Sampling(temperature, top_k, top_p)
    )
    assert chosen.item() in logits[0].topk(top_k).indices


def test_too_many_tokens_are_refused(model: GPT) -> None:
    with pytest.raises(
        InputError, match="30 tokens of prompt plus 11 new ones, but the model has positions for 40"
    ):
        continuations(model, prompts(1, 30), new_tokens=11)
    with pytest.raises(InputError, match="at least one token"):
        continuations(model, prompts(1, 0), new_tokens=1)
    with pytest.raises(InputError, match="3 problems"):
        Sampling(temperature=-1, top_k=0, top_p=2)
    for temperature in (float("nan"), float("inf")):
        with pytest.raises(InputError, match="is not a finite number from 0"):
            Sampling(temperature=temperature)


def test_a_model_of_random_tokens_continues_no_text(tmp_path: Path) -> None:
    run = Run(model="gpt-nano", data="synthetic", global_batch_size=4)
    trained = Checkpoint(tmp_path, run, 60, 4096, "", {}, [])
    with pytest.raises(InputError, match=r"random tokens.*choose a run trained on text"):
        complete(trained, ["def "], new_tokens=1, sampling=Sampling())


def test_a_study_without_a_model_is_told_how_to_keep_one(make_study: StudyMaker) -> None:
    folder = make_study(repeats=1, quick={"base": {"seed": 7}})
    study = lab.Study.load(folder, quick=True)
    write_record(record(study.runs[0]), Store(study.out).folder(study.tasks[0]))
    for form in (folder, study):  # the quick form kept no model either
        with pytest.raises(InputError, match=r"set `keep_model: true` below `base`.* --fresh`"):
            lab.generate(form, prompts=["def "])


def test_a_study_that_keeps_its_models_is_told_what_to_measure(make_study: StudyMaker) -> None:
    base = SMALL_STUDY["base"] | {"keep_model": True}
    folder = make_study(repeats=1, base=base, quick={"base": {"seed": 7}})
    with pytest.raises(InputError, match=rf"`lab run \S*{folder.name}` measures it"):
        lab.generate(folder, prompts=["def "])
    study = lab.Study.load(folder, quick=True)
    write_record(record(study.runs[0]), Store(study.out).folder(study.tasks[0]))
    with pytest.raises(InputError, match="its quick form is measured: add --quick"):
        lab.generate(folder, prompts=["def "])
    with pytest.raises(InputError, match="--fresh` measures again"):  # its model was removed
        lab.generate(study, prompts=["def "])
