"""A study that is small enough to be run many times in tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from lab.config.run import Run
from lab.config.study import Study

SMALL_STUDY = {
    "title": "A small study",
    "question": "Does it work?",
    "scaling": "strong",
    "base": {
        "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
        "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
        "steps": 4,
        "warmup_steps": 1,
        "eval_batches": 1,
    },
    "grid": {"global_batch_size": [4], "world_size": [1, 2]},
    "repeats": 1,
    "baseline": {"world_size": 1},
}
CORPUS = "".join(f"def square_{i}(x):\n    return x * {i} + x ** 2  # the sum of two terms\n\n" for i in range(400))

# A run that would take hours, so that it can be disturbed while it measures.
LONG = {
    "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "warmup_steps": 1,
    "eval_batches": 1,
    "global_batch_size": 4,
    "steps": 5_000_000,
}

StudyMaker = Callable[..., Path]

SMALLEST = {"steps": 4, "warmup_steps": 2, "lr_warmup_steps": 2, "eval_batches": 1}
SMALLEST_INFERENCE = {"prompt_tokens": [8], "batch_sizes": [2], "new_tokens": 4, "rounds": 5}


def smallest(study: Study, folder: Path) -> Study:
    """The same study in that folder: one short run for each strategy, loader, precision and task that it names, and both world sizes."""
    chosen: list[Run] = []
    seen: set[object] = set()
    for run in sorted(study.runs, key=lambda run: -run.world_size):  # the world size that tells more first
        values = {run.strategy, run.loader, run.task, run.world_size, run.device_needed, run.precision, run.compression}
        if not values <= seen:
            chosen.append(run)
            seen |= values
    content = study.model_dump(include={"kind", "title", "question", "scaling", "baseline"})
    folder.mkdir(parents=True)
    content |= {"grid": [_short(run, study.scaling) for run in chosen], "repeats": 1}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return Study.load(folder)


def _short(run: Run, scaling: str) -> dict[str, list[Any]]:
    named = run.model_dump(exclude_defaults=True)
    given = {key: value for key, value in run.model_dump(mode="json").items() if key in named} | SMALLEST
    given.pop("global_batch_size" if scaling == "weak" else "micro_batch_size")
    if scaling != "weak":
        given["global_batch_size"] = 8  # so that studies share runs
    if run.task == "inference":
        unused = set() if run.architecture.kind == "gpt" else {"prompt_tokens", "new_tokens"}
        given |= {key: value for key, value in SMALLEST_INFERENCE.items() if key not in unused}
    return {key: [value] for key, value in given.items()}
