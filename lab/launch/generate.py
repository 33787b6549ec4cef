"""generate(): text from a study's trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.config.study import Study
from lab.errors import InputError, Problem
from lab.records.store import Store


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
    """What the trained model of a run writes after each prompt, in this process.

    `run_id` is a run that kept its model; where it is empty, the first one that did. Greedy at
    temperature 0. Raises InputError where there is no model, or a prompt does not fit.
    """
    from lab.worker.checkpoint import kept_model
    from lab.worker.inference.generate import Sampling
    from lab.worker.inference.model import complete

    study = study if isinstance(study, Study) else Study.load(study)
    run = study.task(run_id).run if run_id else None
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    store = Store(study.out)
    for task in study.tasks:
        if (run is None or task.run == run) and store.completed(task):
            model = kept_model(store.folder(task))
            if model is not None:
                return complete(model, prompts, new_tokens=new_tokens, sampling=sampling)
    what = f"no completed repeat of {run_id or 'this study'} has kept its trained model"
    advice = "set `keep_model: true` below `base` in study.yaml, then `lab run STUDY --fresh`"
    raise InputError(study.name, [Problem("RUN", what, advice)])
