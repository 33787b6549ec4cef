"""The data sets that the lab trains on, each from its real source."""

from __future__ import annotations

from pathlib import Path

from lab import workloads
from lab.errors import InputError, Problem
from lab.place import Progress
from lab.study import Run
from lab.worker.data import shakespeare, stdlib, text
from lab.worker.data.tokens import Corpus, Tokens, tokenize


def prepare(run: Run, *, data_root: Path, progress: Progress) -> Tokens:
    """The run's data as tokens; raises InputError where it is too little for one sample of the model."""
    tokens = tokenize(_read(run, data_root, progress), vocab_size=run.dataset.vocab_size, progress=progress)
    needed = run.architecture.block_size + 1
    for name, part in (("to train on", tokens.train), ("held out", tokens.held_out)):
        if len(part) < needed:
            what = f"{len(part)} tokens {name}, a sample of this model needs {needed}"
            raise InputError("data", [Problem(run.dataset.kind, what, "give it more text, or the model a smaller block_size")])
    return tokens


def _read(run: Run, data_root: Path, progress: Progress) -> Corpus:
    match run.dataset:
        case workloads.Stdlib():
            return stdlib.read()
        case workloads.Text(path=path):
            return text.read(path, data_root=data_root)
        case workloads.Shakespeare():
            return shakespeare.read(progress=progress)
