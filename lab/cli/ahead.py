"""Verbs that look ahead: plan and predict."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import lab
from lab.cli.command import ClusterOption, JsonOption, QuickOption, StudyArgument, answer, app, console, table_of
from lab.errors import InputError, Problem

MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine", metavar="NAME", help="Ask about a described machine instead, such as h100x8:nvlink4:infiniband-ndr."
    ),
]


@app.command()
def plan(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    sbatch: Annotated[
        Path | None,
        typer.Option("--sbatch", metavar="DIR", help="Write the study's job scripts there instead.", show_default=False),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Search the fastest way that fits into memory instead.")] = False,
    machine: MachineOption = None,
    world_size: Annotated[int | None, typer.Option("--world-size", min=1, help="Ranks to plan for, with --best.")] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the runs of a study: what is measured, what time and memory they will take, what cannot run on this cluster."""
    loaded = lab.Study.load(study, quick=quick)
    if sbatch is not None:
        written = [str(path) for path in lab.write_scripts(loaded, cluster, sbatch)]
        answer(as_json, written, "\n".join(written))
        return
    if not best:
        if machine is not None or world_size is not None:
            raise InputError("plan", [Problem("--machine, --world-size", "go with --best alone", "see also `lab predict`")])
        rows = lab.plan(loaded, cluster)
        answer(as_json, rows, table_of(rows))
        return
    searches = lab.best_plans(loaded, cluster, machine=machine, world_size=world_size)
    answer(as_json, [search.content() for search in searches], "")
    for search in () if as_json else searches:
        console.print(f"{search.work}\nsearched: {search.space}", highlight=False, markup=False, soft_wrap=True)
        console.print(table_of(search.table()))
        console.print(search.summary, highlight=False, markup=False, soft_wrap=True)


@app.command()
def predict(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    world_size: Annotated[
        str | None, typer.Option("--world-size", metavar="N,...", help="Ranks to predict for, also beyond the machine.")
    ] = None,
    machine: MachineOption = None,
    profile: Annotated[
        list[str] | None, typer.Option("--profile", metavar="STUDY", help="Take runs on one rank from this study too.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what the runs of a study will take, on other world sizes too, and how wrong earlier predictions were."""
    began = time.perf_counter()
    loaded = lab.Study.load(study, quick=quick)
    profiles = [lab.Study.load(other) for other in profile or ()]
    found = lab.predict(loaded, cluster, world_sizes=_sizes(world_size), machine=machine, profiles=profiles)
    answer(as_json, found.content(), table_of(found.table()))
    if not as_json:
        told = [*found.notes(), f"{len(found.of)} predictions in {time.perf_counter() - began:.2f} s."]
        console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise InputError(
            "predict", [Problem("--world-size", f"{part!r} is no number of ranks", "such as 8,64,512") for part in wrong]
        )
    return [int(part) for part in parts]
