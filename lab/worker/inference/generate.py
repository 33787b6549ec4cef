"""Generation of text: greedy or drawn, token after token, with the keys and values of earlier tokens kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lab.errors import InputError, Problem
from lab.worker.models.gpt import GPT, Cache

_GENERATION = 2  # the stream of random numbers; training and evaluation have 0 and 1


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: the likeliest at temperature 0, else drawn from the `top_k` likeliest of them, and of those
    from the fewest that hold `top_p` of the probability (Holtzman et al., 2020)."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        wrong = [
            *(
                [Problem("temperature", f"{self.temperature} is negative", "0 takes the likeliest")]
                * (self.temperature < 0)
            ),
            *(
                [Problem("top_k", f"{self.top_k} keeps nothing", "1 or more")]
                * (self.top_k is not None and self.top_k < 1)
            ),
            *(
                [Problem("top_p", f"{self.top_p}", "above 0, 1 at most")]
                * (self.top_p is not None and not 0 < self.top_p <= 1)
            ),
        ]
        if wrong:
            raise InputError("generate", wrong)


GREEDY = Sampling()


def stream(
    model: GPT,
    prompts: Tensor,
    *,
    new_tokens: int,
    sampling: Sampling = GREEDY,
    first: int = 0,
    use_cache: bool = True,
) -> Iterator[Tensor]:
    """The next `new_tokens` tokens of each prompt, (samples,) at a time; prompts are (samples, tokens), of equal length.

    `first` is the number of the first prompt among all that are generated on all ranks: what is drawn for a prompt follows
    from the seed and its number, not from who draws it. Call it with gradients off.
    Raises InputError where prompt and new tokens are more than the model's positions.
    """
    samples, length = prompts.shape
    limit = model.positions.num_embeddings
    if length < 1 or length + new_tokens > limit:
        what = f"{length} tokens of prompt and {new_tokens} new ones, the model has positions for {limit}"
        raise InputError(
            "generate",
            [Problem("tokens", what, "a prompt of at least one token, and fewer in all")],
        )
    draws = (
        _uniform(sampling.seed, first=first, samples=samples, tokens=new_tokens)
        if sampling.temperature
        else None
    )
    cache = Cache(len(model.blocks), length + new_tokens) if use_cache else None
    seen, fresh = prompts, prompts
    for number in range(new_tokens):
        logits = model(seen)[:, -1] if cache is None else model.extend(fresh, cache)
        uniform = None if draws is None else torch.from_numpy(draws[:, number]).to(logits.device)
        chosen = choose(logits, uniform, sampling)
        yield chosen
        fresh = chosen[:, None]
        if cache is None:
            seen = torch.cat([seen, fresh], dim=1)


@torch.inference_mode()
def generate(model: GPT, prompts: Tensor, *, new_tokens: int, **how: Any) -> Tensor:
    """The new tokens of each prompt as (samples, new_tokens); keywords are those of `stream`."""
    return torch.stack(list(stream(model, prompts, new_tokens=new_tokens, **how)), dim=1)


def choose(logits: Tensor, uniform: Tensor | None, sampling: Sampling) -> Tensor:
    """One token for each row of logits (samples, vocabulary); `uniform` is (samples,), in [0, 1)."""
    if uniform is None or sampling.temperature == 0:
        return logits.argmax(dim=-1)
    values, order = (logits.float() / sampling.temperature).sort(
        dim=-1, descending=True, stable=True
    )
    if sampling.top_k is not None:
        values[:, sampling.top_k :] = -torch.inf
    probabilities = values.softmax(dim=-1)
    if sampling.top_p is not None:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities * (before < sampling.top_p)
    cumulated = probabilities.double().cumsum(dim=-1)
    # Not beyond the last token that may be drawn, whatever rounding makes of the sum.
    last = (probabilities > 0).sum(dim=-1) - 1
    place = (cumulated <= uniform[:, None] * cumulated[:, -1:]).sum(dim=-1).minimum(last)
    return order.gather(-1, place[:, None])[:, 0]


def _uniform(seed: int, *, first: int, samples: int, tokens: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) by prompt and token."""
    rows = (
        np.random.Generator(
            np.random.Philox(key=[seed, _GENERATION], counter=[0, 0, 0, first + sample])
        ).random(tokens)
        for sample in range(samples)
    )
    return np.stack(list(rows))


def by_length(prompts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The numbers of prompts that can be generated as one batch: those of one length."""
    for length in dict.fromkeys(map(len, prompts)):
        yield [number for number, prompt in enumerate(prompts) if len(prompt) == length]
