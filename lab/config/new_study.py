"""Studies written for a user: one to start with, a copy of an example, or one of a script."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from numbers import Integral
from pathlib import Path

from lab.config.own import stem_of
from lab.config.study import OUT, STUDY_FILE, Scaling, Study, require_printable
from lab.errors import InputError, Problem, items, nearest, path_of, require_type
from lab.files import SHARED, unwritable, write_atomically
from lab.formatting import joined

TEMPLATE = """\
# What you want to know, and the runs that answer it.
# `lab plan {folder}` shows them, `lab run {folder}` measures them.
title: My study
question: Does a second rank make training faster here, and by how much?
scaling: strong          # strong: the global batch is fixed; weak: each rank's batch is; none

base:                    # what all runs share
  # A preset or a mapping; your own code is {{kind: python, factory: "module:name"}}.
  model: gpt-nano
  data: stdlib
  strategy: ddp
  precision: fp32        # fp32, bf16, fp16; on GPUs also tf32
  steps: 40
  warmup_steps: 8        # the first of them, left out of all measurements

grid:                    # what varies: every combination is a run
  global_batch_size: [16]
  world_size: [1, 2]

repeats: 3               # fewer than three support no claim
baseline: {{world_size: 1}}  # what speedups are over

quick:                   # a smaller form, for `--quick`
  base: {{steps: 12, warmup_steps: 4}}
"""
# Its first line, which identifies it.
OF_SCRIPT = "# Written by `lab measure`, which writes it anew for another command."


def new_study(folder: str | Path, *, like: str | None = None) -> list[Path]:
    """Write a commented study, or copy one `like` an example with its code; returns its files.

    Raises InputError for a folder that already holds one of these files or cannot be written to,
    and for an unknown example.
    """
    folder = path_of(folder, "folder")
    require_type(like, str | None, "like", "the name of an example")
    require_printable(folder)
    examples = {
        path.parent.name: path.parent for path in (SHARED / "reports").glob(f"*/{STUDY_FILE}")
    }
    if like is not None and like not in examples:
        raise InputError.of("--like", like, "no such example", nearest(like, examples))
    files = {folder / STUDY_FILE: TEMPLATE.format(folder=shlex.quote(str(folder))).encode()}
    if like is not None:
        sources = [*sorted(examples[like].glob("*.py")), examples[like] / STUDY_FILE]
        files = {folder / path.name: path.read_bytes() for path in sources}
    problems = [
        Problem(path.name, "there already is one", "choose another folder")
        for path in files
        if os.path.lexists(path)
    ]
    if problems:
        raise InputError(str(folder), problems)
    if problems := unwritable(folder):
        raise InputError("init", problems)
    for path, content in files.items():  # the study last, as it is one only with its code
        write_atomically(path, content)
    return list(files)


def script_study(
    command: Sequence[str],
    *,
    ranks: Sequence[int] = (1, 2),
    folder: str | Path | None = None,
    steps: int = 60,
    warmup_steps: int = 10,
    repeats: int = 3,
    scaling: Scaling = "none",
    global_batch_size: int | None = None,
    micro_batch_size: int | None = None,
    launcher: str = "torchrun",
) -> Study:
    """A study of a training script on several numbers of ranks, which runs in this directory.

    `folder` is where it is written, or its name under `reports/`, by default the script's. Batch
    sizes describe what the script's arguments amount to, if the study has to know them. Raises
    InputError, and writes nothing, for a missing script, a folder that holds other files or a study
    of another kind, and values that no study may have.
    """
    expected = "a list of words, such as ['train.py', '--batch-size', '32']"
    command = items(command, str, "command", expected)
    ranks = items(ranks, Integral, "ranks", "whole numbers, such as [1, 2]", least=1)
    name = stem_of(list(command))
    place = script_folder(command, None if folder is None else path_of(folder, "folder"))
    model = {"kind": "script", "command": command, "launcher": launcher}
    model["directory"] = os.path.relpath(Path.cwd(), place.resolve())
    base = {"model": model, "steps": steps, "warmup_steps": warmup_steps}
    sizes = {"global_batch_size": global_batch_size, "micro_batch_size": micro_batch_size}
    base |= {key: size for key, size in sizes.items() if size is not None}
    content = {
        "title": f"{name}.py on {joined(map(str, ranks))} rank{'s' * (list(ranks) != [1])}",
        "question": f"How does {name}.py scale here, and why?",
        "scaling": scaling,
        "base": base,
        "grid": {"world_size": ranks},
        "repeats": repeats,
        "baseline": {"world_size": min(ranks)},
    }
    # Values are JSON, which is YAML too.
    lines = [OF_SCRIPT, *(f"{key}: {json.dumps(value)}" for key, value in content.items())]
    path = place / STUDY_FILE
    if path.exists() and not path.read_bytes().startswith(OF_SCRIPT.encode()):
        what = "there is already a study that `lab measure` did not write"
        raise InputError.of(place, STUDY_FILE, what, "give another --name")
    if not path.exists() and (others := _files_in(place)):
        what = f"holds other files, such as {others[0]}"
        raise InputError.of("measure", str(place), what, "give another --name")
    with restored_if_refused(place):
        if problems := unwritable(place):
            raise InputError("measure", problems)
        write_atomically(path, ("\n".join(lines) + "\n").encode())
        try:
            return Study.load(place)
        except InputError as error:
            raise InputError("measure", error.problems) from None


def script_folder(command: Sequence[str], folder: str | Path | None = None) -> Path:
    """The folder of a script's study: as given, or under `reports/`, by default by its name."""
    place = Path(folder or stem_of(list(command)))
    return Path("reports") / place if len(place.parts) == 1 else place


def _files_in(folder: Path) -> list[str]:
    """What a folder holds besides results, which may be those of a study that was removed."""
    with suppress(OSError):  # there is none, or what is wrong with it is said later
        return sorted({path.name for path in folder.iterdir()} - {OUT})
    return []


@contextmanager
def restored_if_refused(folder: Path) -> Iterator[None]:
    """Leave a study's file as it was if what is done with the new one raises InputError."""
    path, is_new = folder / STUDY_FILE, not folder.exists()
    earlier = path.read_bytes() if path.exists() else None
    try:
        yield
    except InputError:
        with suppress(OSError):  # the folder cannot be written, or holds something else by now
            if earlier is not None:
                write_atomically(path, earlier)
            else:
                path.unlink(missing_ok=True)
            if is_new:
                folder.rmdir()
        raise
