"""A study to begin with: a commented file, or a copy of one that the lab brings along."""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.errors import InputError, Problem, nearest
from lab.files import SHARED

TEMPLATE = """\
# What you want to know, and the runs that answer it.
# `lab plan {folder}` shows them, `lab run {folder}` measures them.
title: My study
question: Does a second rank make training faster here, and by how much?
scaling: strong          # strong: the global batch stays; weak: the batch of each rank stays; none

base:                    # what all runs share
  # A preset or a mapping; your own code is {{kind: python, factory: "module:name"}}.
  model: gpt-nano
  data: stdlib
  strategy: ddp
  precision: fp32        # fp32 or bf16
  steps: 40
  warmup_steps: 8        # of them, left out of every measure

grid:                    # what varies: every combination is a run
  global_batch_size: [16]
  world_size: [1, 2]

repeats: 3               # fewer than three claim nothing
baseline: {{world_size: 1}}  # what speedups are over

quick:                   # a smaller form, for `--quick`
  base: {{steps: 12, warmup_steps: 4}}
"""


def new_study(folder: Path, *, like: str | None = None) -> list[Path]:
    """Write a commented study, or copy one `like` an example with its code; returns its files.

    Raises InputError for a folder that holds a study already, and for an unknown example.
    """
    if (folder / "study.yaml").exists():
        problem = Problem("study.yaml", "there is one already", "choose another folder")
        raise InputError(str(folder), [problem])
    examples = {path.parent.name: path.parent for path in (SHARED / "reports").glob("*/study.yaml")}
    if like is not None and like not in examples:
        raise InputError("--like", [Problem(like, "no such example", nearest(like, examples))])
    folder.mkdir(parents=True, exist_ok=True)
    if like is None:
        (folder / "study.yaml").write_text(TEMPLATE.format(folder=folder))
        return [folder / "study.yaml"]
    sources = [examples[like] / "study.yaml", *sorted(examples[like].glob("*.py"))]
    return [Path(shutil.copy(path, folder)) for path in sources]
