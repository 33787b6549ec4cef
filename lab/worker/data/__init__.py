"""The data sets that the lab trains on, each from its real source.

The module of a family of data sets holds a reader for each kind of `lab.config.datasets` in
SOURCES.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from lab.config.datasets import Data
from lab.config.run import Run
from lab.worker.context import Progress
from lab.worker.data.dataset import Dataset
from lab.worker.pretrained import folder_of

# By the tasks of the configuration: a new kind of a known task needs no entry.
FAMILIES = {
    ("language modelling",): "corpora",
    ("text classification",): "labelled",
    ("image classification",): "images",
    ("language modelling", "text classification", "image classification"): "synthetic",
    ("its own task",): "own",
}


def prepare(run: Run, *, data_root: Path, progress: Progress) -> Dataset:
    """The run's data as samples of its model.

    Raises InputError for fewer tokens than a sample takes, LabError for an unreadable source.
    """
    # The tokenizer beside a model's published weights makes its tokens.
    pretrained = folder_of(run.architecture, data_root=data_root)
    dataset: Dataset = module_of(run.dataset).prepare(
        run, pretrained=pretrained, data_root=data_root, progress=progress
    )
    return replace(dataset, pretrained=pretrained)


def module_of(config: Data | type[Data]) -> ModuleType:
    """The module that reads data of this kind; the others are not imported."""
    return importlib.import_module(f"lab.worker.data.{FAMILIES[config.tasks]}")
