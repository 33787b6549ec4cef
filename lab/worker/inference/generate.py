"""Text generation with a KV cache: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.config import models
from lab.config.datasets import Synthetic
from lab.config.study import Study
from lab.errors import InputError, LabError, Problem
from lab.records.store import Store, other_form
from lab.records.table import grouped
from lab.worker import checkpoint
from lab.worker.checkpoint import Checkpoint
from lab.worker.data.corpora import load_tokenizer
from lab.worker.data.dataset import GENERATION, random_numbers
from lab.worker.models.gpt import GPT, Cache


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: the likeliest at temperature 0, else drawn from the `top_k` likeliest.

    These are limited to the fewest that hold `top_p` of the probability (Holtzman et al., 2020).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.temperature < math.inf:
            what = f"{self.temperature} is not a finite number from 0"
            problems.append(Problem("temperature", what, "use 0 for the likeliest token"))
        if self.top_k is not None and self.top_k < 1:
            problems.append(Problem("top_k", f"{self.top_k} keeps no token", "use 1 or more"))
        if self.top_p is not None and not 0 < self.top_p <= 1:
            problems.append(
                Problem("top_p", f"{self.top_p} is not a share", "use one above 0 and up to 1")
            )
        if problems:
            raise InputError("generate", problems)


GREEDY = Sampling()


def stream(
    model: GPT,
    prompts: Tensor,
    *,
    new_tokens: int,
    sampling: Sampling = GREEDY,
    numbers: Sequence[int] | None = None,
) -> Iterator[Tensor]:
    """The next `new_tokens` tokens of each prompt (samples, tokens), as (samples,) at a time.

    `numbers` are those of the prompts among all that are continued, counted from 0 by default: the
    tokens sampled for a prompt depend on the seed and its number, not on its batch. Call it with
    gradients off. Raises InputError if prompt and new tokens exceed the model's positions.
    """
    samples, length = prompts.shape
    limit = model.positions.num_embeddings  # positions are learned, so there are none beyond
    if length < 1 or length + new_tokens > limit:
        what = f"{length} tokens of prompt plus {new_tokens} new ones"
        what += f", but the model has positions for {limit}"
        advice = "use a prompt of at least one token, and fewer tokens in total"
        raise InputError.of("generate", "tokens", what, advice)
    uniform = None
    if sampling.temperature:
        places = range(samples) if numbers is None else numbers
        rows = [random_numbers(sampling.seed, GENERATION, place) for place in places]
        uniform = torch.from_numpy(np.stack([row.random(new_tokens) for row in rows]))
    cache = Cache(len(model.blocks), length + new_tokens)
    new = prompts  # the first step fills the cache with the whole prompt
    for number in range(new_tokens):
        logits = model.extend(new, cache)
        drawn = None if uniform is None else uniform[:, number].to(logits.device)
        chosen = choose(logits, drawn, sampling)
        yield chosen
        new = chosen[:, None]


@torch.inference_mode()
def continuations(model: GPT, prompts: Tensor, *, new_tokens: int, **options: Any) -> Tensor:
    """The new tokens of each prompt as (samples, new_tokens); keywords are those of `stream`."""
    return torch.stack(list(stream(model, prompts, new_tokens=new_tokens, **options)), dim=1)


def choose(logits: Tensor, uniform: Tensor | None, sampling: Sampling) -> Tensor:
    """A token for each row of logits (samples, vocabulary); `uniform` is (samples,), in [0, 1)."""
    if uniform is None or sampling.temperature == 0:
        return logits.argmax(dim=-1)
    # Stable, so that equal logits have the same order on every device.
    scaled = logits.float() / sampling.temperature
    values, order = scaled.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k is not None:
        values[:, sampling.top_k :] = -torch.inf
    probabilities = values.softmax(dim=-1)
    if sampling.top_p is not None:
        # A token stays if less than top_p precedes it, so the likeliest always stays.
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities * (before < sampling.top_p)
    # In fp64, as the sum over a large vocabulary would lose small probabilities in fp32.
    cumulated = probabilities.double().cumsum(dim=-1)
    # Never beyond the last permitted token, however the sum is rounded.
    last = (probabilities > 0).sum(dim=-1) - 1
    place = (cumulated <= uniform[:, None] * cumulated[:, -1:]).sum(dim=-1).minimum(last)
    return order.gather(-1, place[:, None])[:, 0]


def generate(
    study: Study | str | Path,
    run_id: str = "",
    *,
    prompts: Sequence[str],
    new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
) -> list[str]:
    """Generate text after each prompt with a run's trained model, in this process.

    `run_id` is a run that kept its model; if empty, the first one that did. Decoding is greedy at
    temperature 0. Raises InputError if there is no model or a prompt does not fit.
    """
    study = Study.of(study)
    run = study.task(run_id).run if run_id else None
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    store = Store(study.out)
    for task in study.tasks:
        if (run is None or task.run == run) and store.completed(task):
            model = checkpoint.kept_model(store.folder(task))
            if model is not None:
                return complete(model, prompts, new_tokens=new_tokens, sampling=sampling)
    what = f"no completed repeat of {run_id or 'this study'} kept its trained model"
    command, keeps = study.command("run"), any(run.keep_model for run in study.runs)
    advice = f"`{command} --fresh` measures again"
    if not keeps:
        advice = f"set `keep_model: true` below `base` in study.yaml, then `{command} --fresh`"
    elif not any(map(store.completed, study.tasks)):
        advice = other_form(study) or f"`{command}` measures it"
    raise InputError.of(study.name, "RUN", what, advice)


def complete(
    trained: Checkpoint, prompts: Sequence[str], *, new_tokens: int, sampling: Sampling
) -> list[str]:
    """Continue each prompt with a language model, on a GPU if there is one.

    Raises InputError for a model of another kind, for one of random tokens, and for an empty or too
    long prompt.
    """
    config = trained.run.architecture
    if not isinstance(config, models.GPT):
        what = f"{trained.run.label} is not a language model"
        raise InputError.of("inference", "model", what, "choose a GPT")
    if isinstance(trained.run.dataset, Synthetic):
        what = "the model was trained on random tokens, which stand for no text"
        raise InputError.of("generate", "data", what, "choose a run trained on text")
    try:
        tokenizer = load_tokenizer(trained.folder / checkpoint.TOKENIZER)
    except (OSError, ValueError) as error:
        raise LabError(f"the model's tokenizer cannot be read: {error}") from None
    tokens = [tokenizer.encode(prompt).ids for prompt in prompts]
    problems = [
        Problem("prompt", f"{prompt!r} has no tokens")
        for prompt, ids in zip(prompts, tokens, strict=True)
        if not ids
    ]
    if problems:
        raise InputError("generate", problems)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = GPT(config, vocab_size=trained.vocab_size)  # without its data, which may be elsewhere
    checkpoint.load_model(model, trained)
    model.to(device).eval()
    texts = [""] * len(prompts)
    # Prompts form one batch if they have the same length.
    for numbers in grouped((len(ids), number) for number, ids in enumerate(tokens)).values():
        batch = torch.tensor([tokens[number] for number in numbers], device=device)
        new = continuations(model, batch, new_tokens=new_tokens, sampling=sampling, numbers=numbers)
        for number, ids in zip(numbers, new.tolist(), strict=True):
            texts[number] = tokenizer.decode(ids)
    return texts
