"""Verbs about the machine and the lab itself: doctor, calibrate, bench."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

import lab
from lab.cli.command import ClusterOption, JsonOption, answer, app, console, table_of
from lab.errors import InputError, LabError, Problem, nearest


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine has, what is missing, and the command that gets it."""
    checks = lab.doctor()
    rows = [
        {
            "": "ok" if check.present else "MISSING" if check.needed else "-",
            "what": check.name,
            "found": check.found,
            "to get it": check.remedy,
        }
        for check in checks
    ]
    answer(as_json, [vars(check) for check in checks], table_of(rows))
    missing = [check.name for check in checks if check.needed and not check.present]
    if missing:
        raise LabError(f"missing: {', '.join(missing)}")


@app.command()
def calibrate(
    cluster: ClusterOption = "local",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what was measured today.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the collectives by size, matrix products and memory of a cluster, and fit alpha and beta."""
    found = lab.calibrate(cluster, quick=quick, fresh=fresh, progress=not as_json)
    if as_json:
        answer(as_json, found.model_dump(mode="json"), "")
        return
    from lab.calibration_tables import fits_table, throughput_table

    for frame in (fits_table(found), throughput_table(found)):
        console.print(table_of(frame.reset_index(drop=frame.index.name is None).to_dict("records")))


@app.command()
def bench(
    what: Annotated[
        str,
        typer.Argument(
            metavar="overhead|losses|predict|planner",
            help="overhead: what measuring costs a step; losses: whether all strategies learn the same; "
            "predict: how wrong predictions of two ranks are; planner: how long looking ahead takes.",
        ),
    ],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds, settings of each strategy, steps and repeats.")] = False,
    cluster: ClusterOption = "local",
    fresh: Annotated[bool, typer.Option("--fresh", help="Predict and measure again what is measured.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the lab itself."""
    benches = {
        "overhead": lambda: _measure_overhead(quick=quick, as_json=as_json),
        "losses": lambda: _compare_losses(quick=quick, as_json=as_json),
        "predict": lambda: _score_predictions(cluster, quick=quick, fresh=fresh, as_json=as_json),
        "planner": lambda: _time_planner(as_json=as_json),
    }
    if what not in benches:
        raise InputError("bench", [Problem(what, "no such benchmark", nearest(what, benches))])
    benches[what]()


def _measure_overhead(*, quick: bool, as_json: bool) -> None:
    found = lab.benchmarks.overhead(quick=quick)
    answer(as_json, dataclasses.asdict(found), str(found))
    if not found.within_limit:
        limit, noise = lab.benchmarks.LIMIT, abs(found.control.median - 1)
        noisy = f", but two plain loops differ by {noise:.1%} too: try again when nothing else runs here"
        raise LabError(f"measuring costs more than the limit of {limit}{noisy if noise > limit - 1 else ''}")


def _score_predictions(cluster: str, *, quick: bool, fresh: bool, as_json: bool) -> None:
    from lab.ahead import held_out

    found = held_out.held_out(cluster, quick=quick, fresh=fresh, progress=not as_json)
    content = {"error": found.error, "memory_error": found.memory_error, "limit": held_out.LIMIT, "scores": list(found.scores)}
    answer(as_json, content, table_of(found.table()))
    if not as_json:
        console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if not found.within_limit:
        raise LabError(f"predictions are {100 * found.error:.1f} % off on average, the limit is {100 * held_out.LIMIT:.0f} %")


def _time_planner(*, as_json: bool) -> None:
    from lab.ahead.planner_speed import planner_speed

    found = planner_speed()
    answer(as_json, dataclasses.asdict(found), str(found))
    if not found.within_limit:
        raise LabError("looking ahead takes longer than its limits")


def _compare_losses(*, quick: bool, as_json: bool) -> None:
    found = lab.equal_losses(quick=quick)
    verdicts = {True: "yes", False: "NO", None: "not run"}
    rows = [
        {
            "run": row.name,
            "final loss": None if row.final_loss is None else f"{row.final_loss:.5f}",
            "validation loss": None if row.validation_loss is None else f"{row.validation_loss:.5f}",
            "difference": None if row.difference is None else f"{row.difference:.1e}",
            "tolerance": f"{row.tolerance:.0e}",
            "equal": verdicts[row.equal] + (f": {row.reason}" if row.reason else ""),
        }
        for row in found
    ]
    answer(as_json, [dataclasses.asdict(row) | {"equal": row.equal} for row in found], table_of(rows))
    unequal = [row.name for row in found if row.equal is False]
    if unequal:
        raise LabError(f"these do not learn what single does: {', '.join(unequal)}")
