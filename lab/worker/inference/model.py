"""The model that inference starts from, trained once as the run specifies and then cached."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from lab.config import models
from lab.config.datasets import Synthetic
from lab.config.run import Run
from lab.errors import InputError, LabError, Problem
from lab.records.table import grouped
from lab.worker import checkpoint
from lab.worker.checkpoint import Checkpoint
from lab.worker.data.cache import in_cache, load_or_build
from lab.worker.data.corpora import load_tokenizer
from lab.worker.data.dataset import Dataset
from lab.worker.distributed import RankJob
from lab.worker.inference.generate import Sampling, generate
from lab.worker.models import build
from lab.worker.models.gpt import GPT
from lab.worker.train import train

# The fields of an inference run that specify how its model is trained.
TRAINING_FIELDS = {
    *("model", "data", "precision", "global_batch_size", "grad_accum", "seed", "eval_batches"),
    *("steps", "warmup_steps", "lr_warmup_steps", "learning_rate", "min_learning_rate"),
    *("weight_decay", "grad_clip"),
}


def training_run(run: Run) -> Run:
    """The one-process training that produces the model of an inference run."""
    fields = {name: getattr(run, name) for name in TRAINING_FIELDS}
    return Run.model_validate(fields | {"strategy": "single", "keep_model": True})


def trained_model(job: RankJob) -> Checkpoint:
    """The checkpoint of the run's model, cached or trained now; raises the errors of `train`."""
    # One process trains while the others wait for the lock; a process group would time out.
    alone = dataclasses.replace(job.context, rank=0, world_size=1)
    training = dataclasses.replace(job, run=training_run(job.run), context=alone)
    # Different data, torch or kind of device give a different model.
    data, device = job.dataset.sha256[:16], job.device.type
    folder = in_cache("models", f"{training.run.id}-{data}-{torch.__version__}-{device}")
    return load_or_build(
        folder,
        lambda: checkpoint.kept_model(folder),
        lambda: train(training, folder=folder),
        # A rank that reports nothing would be considered hung.
        waiting=lambda: job.progress("training", 0, training.run.steps),
    )


def load_model(trained: Checkpoint, dataset: Dataset, *, device: torch.device) -> nn.Module:
    """A checkpoint's model on a device, in evaluation mode; raises the errors of `build`."""
    model = build(trained.run, dataset)
    checkpoint.load_model(model, trained)
    return model.to(device).eval()  # without dropout


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
        new = generate(model, batch, new_tokens=new_tokens, sampling=sampling, numbers=numbers)
        for number, ids in zip(numbers, new.tolist(), strict=True):
            texts[number] = tokenizer.decode(ids)
    return texts
