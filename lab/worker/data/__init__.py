"""The data sets that the lab trains on, each from its real source."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lab.config import datasets, models
from lab.config.run import Run
from lab.errors import InputError, Problem
from lab.worker.context import Progress
from lab.worker.data import corpora, images, labelled, synthetic
from lab.worker.data.dataset import Dataset, Windows
from lab.worker.data.labelled import Source, tokenized
from lab.worker.data.tokenizer import Corpus, tokenize
from lab.worker.pretrained import folder_of


def prepare(run: Run, *, data_root: Path, progress: Progress) -> Dataset:
    """The run's data as samples of its model; raises InputError where it is too little for one, LabError without a source."""
    pretrained = folder_of(run.architecture, data_root=data_root)
    return replace(_prepare(run, pretrained, data_root, progress), pretrained=pretrained)


def _prepare(run: Run, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    config, model = run.dataset, run.architecture
    if isinstance(config, datasets.Synthetic):
        return synthetic.dataset(config, model, progress=progress)
    if isinstance(config, datasets.MNIST):
        return images.mnist(progress=progress)
    if isinstance(config, datasets.Digits):
        return images.digits(progress=progress)
    assert not isinstance(model, models.CNN), "a run refuses models and data that do not fit"
    if isinstance(config, datasets.LabelledTexts):
        return tokenized(
            _labelled(config, progress),
            block_size=model.block_size,
            vocab_size=config.vocab_size,
            progress=progress,
            pretrained=pretrained,
            again=run.loader == "classic",
        )
    return _continued(
        run,
        _read(config, data_root, progress),
        model.block_size,
        config.vocab_size,
        pretrained,
        progress,
    )


def _continued(
    run: Run,
    corpus: Corpus,
    block_size: int,
    vocab_size: int,
    pretrained: Path | None,
    progress: Progress,
) -> Dataset:
    file = pretrained / "tokenizer.json" if pretrained else None
    size = datasets.vocab_size_of(run.architecture, run.dataset) if pretrained else vocab_size
    tokens = tokenize(corpus, vocab_size=size, progress=progress, tokenizer=file)
    needed = block_size + 1
    for name, part in (("to train on", tokens.train), ("held out", tokens.held_out)):
        if len(part) < needed:
            what = f"{len(part)} tokens {name}, a sample of this model needs {needed}"
            raise InputError(
                "data",
                [
                    Problem(
                        run.dataset.kind,
                        what,
                        "give it more text, or the model a smaller block_size",
                    )
                ],
            )
    return Dataset(
        train=Windows(tokens.train, block_size=block_size),
        held_out=Windows(tokens.held_out, block_size=block_size),
        sha256=tokens.sha256,
        description=tokens.description,
        tokens_per_sample=block_size,
        vocab_size=size,
        tokenizer=tokens.tokenizer,
    )


def _labelled(config: datasets.LabelledTexts, progress: Progress) -> Source:
    match config:
        case datasets.AGNews():
            return labelled.ag_news_source(progress=progress)
        case datasets.IMDB():
            return labelled.imdb_source(progress=progress)
        case datasets.Topics():
            return labelled.topics_source(progress=progress)


def _read(config: datasets.Corpora, data_root: Path, progress: Progress) -> Corpus:
    match config:
        case datasets.Stdlib():
            return corpora.read_stdlib()
        case datasets.Text(path=path):
            return corpora.read_text(path, data_root=data_root)
        case datasets.Shakespeare():
            return corpora.read_shakespeare(progress=progress)
