"""The data sets that the lab trains on, each from its real source.

The module for a family of data sets holds in SOURCES a reader for each kind of
`lab.config.datasets`.
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

# By the configuration's tasks, so a new kind for a known task needs no entry.
FAMILIES = {
    ("language modelling",): "data.corpora",
    ("text classification",): "data.labelled",
    ("image classification",): "data.images",
    ("language modelling", "text classification", "image classification"): "data.synthetic",
    ("its own task",): "own",
}


def prepare(run: Run, *, data_root: Path, progress: Progress) -> Dataset:
    """The run's data as samples of its model.

    Raises InputError for fewer tokens than a sample needs, LabError for an unreadable source.
    """
    # Published weights bring their own tokenizer.
    pretrained = folder_of(run.architecture, data_root=data_root)
    dataset: Dataset = module_of(run.dataset).prepare(
        run, pretrained=pretrained, data_root=data_root, progress=progress
    )
    return replace(dataset, pretrained=pretrained)


def module_of(config: Data | type[Data]) -> ModuleType:
    """The module that reads data of this kind; no other is imported."""
    return importlib.import_module(f"lab.worker.{FAMILIES[config.tasks]}")
