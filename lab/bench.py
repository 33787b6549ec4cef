"""`lab bench`: the lab measures itself, and each benchmark's answer is held to its limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from typer import Argument, Option

import lab
from lab.errors import LabError
from lab.terminal import (
    AssumeOption,
    ClusterOption,
    JsonOption,
    TableOption,
    View,
    answer,
    assumed,
    refuse,
    table_of,
)

Verdict = tuple[Any, list[View], str]  # content, views, and why it is not good enough
BenchQuickOption = Annotated[bool, Option("--quick", help="Fewer rounds, settings and steps.")]
bench = typer.Typer(no_args_is_help=True, help="Measure the lab itself.")


@bench.command()
def overhead(
    quick: BenchQuickOption = False,
    script: Annotated[
        str | None, Option(metavar="COMMAND", help="Of a script, such as 'train.py --lr 1'.")
    ] = None,
    ranks: Annotated[int, Option(min=1, help="Ranks of the script.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Measure what measuring costs a step."""
    if script is not None:
        rounds = 3 if quick else 7
        result = lab.benchmarks.script_overhead(script, ranks=ranks, rounds=rounds)
    elif ranks > 1:
        refuse("bench", {"--ranks": ranks}, "are those of a script", "give --script COMMAND")
    else:
        result = lab.benchmarks.overhead(quick=quick)
    _judge(_overhead(result), as_json=as_json)


@bench.command()
def training(
    study: Annotated[
        str | None,
        Argument(metavar="STUDY", help="A study whose GPTs on one device are trained."),
    ] = None,
    quick: BenchQuickOption = False,
    nanogpt: Annotated[
        str | None, Option(metavar="FILE", help="Also nanoGPT, with this model.py.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the lab's step with those of other loops."""
    results = lab.benchmarks.training(*filter(None, [study]), nanogpt=nanogpt, quick=quick)
    _judge(_training(results), as_json=as_json)


@bench.command()
def losses(quick: BenchQuickOption = False, as_json: JsonOption = False) -> None:
    """Show whether all strategies learn the same."""
    _judge(_equal_losses(lab.equal_losses(quick=quick)), as_json=as_json)


@bench.command()
def predict(
    quick: BenchQuickOption = False,
    every: Annotated[
        bool, Option("--all", help="Every strategy, on a quiet machine and with one core loaded.")
    ] = False,
    cluster: ClusterOption = "local",
    fresh: Annotated[bool, Option("--fresh", help="Predict and measure again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure how wrong predictions for two ranks are."""
    options: dict[str, Any] = {"quick": quick, "fresh": fresh, "progress": not as_json}
    if every:
        verdict = _held_out_strategies(lab.benchmarks.held_out_strategies(cluster, **options))
    else:
        verdict = _held_out(lab.benchmarks.held_out(cluster, **options))
    _judge(verdict, as_json=as_json)


@bench.command()
def public(
    tables: Annotated[
        list[str] | None,
        Argument(metavar="TABLE", help="Tables of layouts, instead of the lab's own."),
    ] = None,
    assume: AssumeOption = None,
    fit: Annotated[int, Option(metavar="N", help="Rows that are fitted.")] = 10,
    splits: Annotated[int, Option(metavar="N", help="Random splits.")] = 30,
    table: TableOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how wrong predictions of published layouts are."""
    given = assumed(assume, "bench public")
    result = lab.benchmarks.public(tables or (), fit=fit, splits=splits, assume=given, number=table)
    _judge(_public(result), as_json=as_json)


@bench.command()
def planner(as_json: JsonOption = False) -> None:
    """Measure how long predicting and planning take."""
    _judge(_planner_speed(lab.benchmarks.planner_speed()), as_json=as_json)


@bench.command()
def driver(quick: BenchQuickOption = False, as_json: JsonOption = False) -> None:
    """Measure how much longer a study takes than its jobs."""
    costs = lab.benchmarks.driver_costs(quick=quick, progress=not as_json)
    _judge(_driver_costs(costs), as_json=as_json)


@bench.command()
def report(
    runs: Annotated[int, Option(metavar="N", min=10, help="Runs of the largest study.")] = 3000,
    as_json: JsonOption = False,
) -> None:
    """Measure status, plan, audit and report of many runs."""
    _judge(_many_runs(runs), as_json=as_json)


def _judge(verdict: Verdict, *, as_json: bool) -> None:
    content, views, failure = verdict
    answer(as_json, content, *views)
    if failure:
        raise LabError(failure)


def _overhead(result: lab.benchmarks.Overhead) -> Verdict:
    limit, noise = lab.benchmarks.LIMIT, abs(result.control.median - 1)
    failure = f"a measured step takes more than {limit} times as long as a plain one"
    if noise > limit - 1:
        failure += (
            f", but two plain loops differ by {100 * noise:.1f} % too: try again on an idle machine"
        )
    return result, [str(result)], "" if result.within_limit else failure


def _training(results: list[lab.benchmarks.Comparison]) -> Verdict:
    limit = lab.benchmarks.LIMIT
    slower = [f"{one.loop} ({one.run.label})" for one in results if one.slower]
    failure = f"a step of the lab takes more than {limit} times that of {', '.join(slower)}"
    table = table_of([one.row() for one in results])
    return _with(results, "slower"), [table], failure if slower else ""


def _with(results: Sequence[Any], judgement: str) -> list[dict[str, Any]]:
    """For programs: results with what is computed from them."""
    return [dataclasses.asdict(one) | {judgement: getattr(one, judgement)} for one in results]


def _equal_losses(results: list[lab.benchmarks.EqualLoss]) -> Verdict:
    verdicts = {True: "yes", False: "NO", None: "not run"}
    formats = {"final_loss": ".5f", "validation_loss": ".5f", "difference": ".1e"}
    formats["tolerance"] = ".0e"
    rows = []
    for result in results:
        row: dict[str, str | None] = {"run": result.name}
        for name, spec in formats.items():
            value = getattr(result, name)
            row[name.replace("_", " ")] = None if value is None else format(value, spec)
        reason = f": {result.reason}" if result.reason else ""
        rows.append(row | {"equal": verdicts[result.equal] + reason})
    unequal = [result.name for result in results if result.equal is False]
    failure = f"these do not learn the same as single: {', '.join(unequal)}" if unequal else ""
    return _with(results, "equal"), [table_of(rows)], failure


def _held_out(result: lab.benchmarks.HeldOut) -> Verdict:
    limit = lab.benchmarks.ERROR_LIMIT
    content = {"error": result.error, "memory_error": result.memory_error, "limit": limit}
    error = f"predictions are {100 * result.error:.1f} % off on average"
    failure = "" if result.within_limit else f"{error}; the limit is {100 * limit:.0f} %"
    return content | {"scores": result.scores}, [table_of(result.table()), str(result)], failure


def _held_out_strategies(result: lab.benchmarks.HeldOutStrategies) -> Verdict:
    content = {
        "inside": result.inside,
        "half_width": result.half_width,
        "errors": result.errors(),
        "misses": result.misses(),
        "scores": {name: one.scores for name, one in result.conditions.items()},
    }
    views: list[View] = [table_of(result.table()), table_of(result.summary()), str(result)]
    return content, views, "; ".join(result.misses())


def _planner_speed(result: lab.benchmarks.Speed) -> Verdict:
    failure = "" if result.within_limit else "predicting takes longer than its limits"
    return result, [str(result)], failure


def _public(result: lab.benchmarks.PublicBench) -> Verdict:
    times, choices = map(table_of, result.tables())
    return result.content(), [times, "", choices, "", *result.notes()], ""


def _driver_costs(costs: list[lab.benchmarks.DriverCost]) -> Verdict:
    failure = "" if all(one.within_limits for one in costs) else "the driver exceeds its limits"
    return _with(costs, "ratio"), [table_of([one.row() for one in costs])], failure


def _many_runs(runs: int) -> Verdict:
    from lab.report.bench import LIMITS, costs, shapes

    total, progress = len(list(shapes(runs))), Console(stderr=True)
    measured = list(track(costs(runs), "studies", total=total, console=progress, transient=True))
    rows = [cost.row() for cost in measured]
    beyond = [cost for cost in measured if not cost.within_limits]
    failure = f"beyond the limits ({LIMITS}): {len(beyond)} of {total} studies" if beyond else ""
    return rows, [table_of(rows)], failure
