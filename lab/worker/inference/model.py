"""The trained model that inference starts from: trained once as the run says, and kept in the cache."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from lab.config import models
from lab.config.run import Run
from lab.errors import InputError, LabError, Problem
from lab.worker import checkpoint
from lab.worker.checkpoint import Checkpoint
from lab.worker.context import Progress, RankContext
from lab.worker.data.cache import cache_folder, locked
from lab.worker.data.dataset import Dataset
from lab.worker.inference.generate import Sampling, by_length, generate
from lab.worker.models import build
from lab.worker.models.gpt import GPT
from lab.worker.train import train

# What of an inference run says how its model is trained.
RECIPE = (
    *(
        "model",
        "data",
        "precision",
        "global_batch_size",
        "grad_accum",
        "steps",
        "warmup_steps",
        "learning_rate",
    ),
    *("min_learning_rate", "lr_warmup_steps", "weight_decay", "grad_clip", "seed", "eval_batches"),
)


def recipe_of(run: Run) -> Run:
    """The training on one process that makes the model of an inference run."""
    return Run.model_validate(
        {name: getattr(run, name) for name in RECIPE} | {"strategy": "single", "keep_model": True}
    )


def trained_model(
    run: Run, place: RankContext, *, device: torch.device, dataset: Dataset, progress: Progress
) -> Checkpoint:
    """The checkpoint of the run's model, from the cache or trained into it.

    Safe beside other ranks and jobs that want the same: one trains under a lock, the others wait. Call it outside of a
    process group. Raises what training raises.
    """
    recipe = recipe_of(run)
    folder = (
        cache_folder("models")
        / f"{recipe.id}-{dataset.sha256[:16]}-{torch.__version__}-{device.type}"
    )
    found = checkpoint.kept_model(folder)
    if found is None:
        with locked(
            folder.with_name(f"{folder.name}.lock"),
            waiting=lambda: progress("training", 0, recipe.steps),
        ):
            found = checkpoint.kept_model(folder)
            if found is None:
                alone = dataclasses.replace(place, rank=0, world_size=1)
                train(
                    recipe, alone, device=device, dataset=dataset, progress=progress, folder=folder
                )
                found = checkpoint.kept_model(folder)
    if found is None:
        raise LabError(f"{folder}: written just now and not readable: is the disk full?")
    return found


def rebuilt(found: Checkpoint, dataset: Dataset, *, device: torch.device) -> nn.Module:
    """A checkpoint's model of any kind on a device, in evaluation mode; raises what building it raises."""
    model = build(found.run, dataset)
    checkpoint.load_model(model, found)
    return model.to(device).eval()


def load(found: Checkpoint, *, device: torch.device) -> GPT:
    """A checkpoint's language model on a device, ready to generate; raises InputError for a model of another kind."""
    config = found.run.architecture
    if not isinstance(config, models.GPT):
        what = f"{found.run.label} is no language model"
        raise InputError("inference", [Problem("model", what, "choose a gpt")])
    model = GPT(config, vocab_size=found.vocab_size)
    checkpoint.load_model(model, found)
    return model.to(device).eval()


def sha256(path: Path) -> str:
    """The hash of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def complete(
    found: Checkpoint, prompts: Sequence[str], *, new_tokens: int, sampling: Sampling
) -> list[str]:
    """What the model writes after each prompt, on a GPU where there is one; prompts of one length in tokens share a batch.

    Raises InputError for a prompt that is empty or too long for the model.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(found.tokenizer))
    encoded = [tokenizer.encode(prompt).ids for prompt in prompts]
    empty = [
        Problem("prompt", f"{prompt!r} has no tokens")
        for prompt, ids in zip(prompts, encoded, strict=True)
        if not ids
    ]
    if empty:
        raise InputError("generate", empty)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load(found, device=device)
    texts = [""] * len(prompts)
    for numbers in by_length(encoded):
        batch = torch.tensor([encoded[number] for number in numbers], device=device)
        made = generate(model, batch, new_tokens=new_tokens, sampling=sampling, first=numbers[0])
        for number, ids in zip(numbers, made.tolist(), strict=True):
            texts[number] = tokenizer.decode(ids)
    return texts
