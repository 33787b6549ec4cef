"""The `lab` command: each verb calls one function of the public API and prints its answer."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import lab
from lab.errors import InputError, LabError, Problem, nearest

WIDE = 200  # columns for a file or a pipe, in which nothing need be broken; a terminal has its own

# The error of a wrong command line, of the click that typer carries or of the installed one.
UsageError: Any = typer.BadParameter.__mro__[1]
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Scaling Lab: how does training scale here, and why?",
)
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)

StudyArgument = Annotated[
    str, Argument(metavar="STUDY", help="A folder under reports/, by name or by path.")
]
ClusterOption = Annotated[
    str, Option("--cluster", metavar="PROFILE", help="A profile of slurm/, by name or by path.")
]
QuickOption = Annotated[bool, Option("--quick", help="The study's smallest honest form.")]
JsonOption = Annotated[bool, Option("--json", help="Answer for programs.")]
MachineOption = Annotated[
    str | None,
    Option(
        "--machine",
        metavar="NAME",
        help="Ask about a described machine instead, such as h100x8:nvlink4:infiniband-ndr.",
    ),
]


def main() -> None:
    """Run the command; exit status 0 done, 1 something failed, 2 unusable input."""
    message, status = "", 1
    try:
        status = app(standalone_mode=False) or 0
    except LabError as error:
        message, status = str(error), error.exit_status
    except UsageError as error:
        message, status = f"{error.format_message()} See `lab --help`.", 2
    except (KeyboardInterrupt, typer.Abort):
        message = "interrupted; the same command goes on from there"
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 the traceback is kept for whoever mends it
        fault = f"a fault of the lab itself: {type(error).__name__}: {error}"
        message = f"{fault}\nlab: traceback in {_write_traceback()}"
    if message:
        Console(stderr=True).print(f"lab: {message}", highlight=False, markup=False, soft_wrap=True)
    sys.exit(status if isinstance(status, int) else 0)


def _write_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix="lab-traceback-", suffix=".txt", text=True)
    with os.fdopen(handle, "w") as stream:
        stream.write(traceback.format_exc())
    return Path(name)


def answer(as_json: bool, content: Any, *views: str | Text | Table) -> None:
    """Print the content as JSON, or the texts and tables for people."""
    if as_json:
        sys.stdout.write(json.dumps(content, indent=1, default=_plain) + "\n")
        return
    for view in views:
        console.print(view, highlight=False, markup=False, soft_wrap=isinstance(view, str))


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def table_of(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """A table with a column for each key of the first row; numbers stand to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0] if rows else ():
        cells = [str(row[key]) for row in rows if row[key] is not None]
        numeric = all(cell.replace(".", "", 1).strip("% ").isdigit() for cell in cells)
        table.add_column(str(key), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    return table


def relative(*paths: Path) -> str:
    """Paths as seen from here, one per line."""
    return "\n".join(map(os.path.relpath, paths))


def count(number: int, noun: str) -> str:
    """A number with its noun, such as `1 job` or `2 jobs`."""
    return f"{number} {noun}{'s' * (number != 1)}"


@app.command()
def init(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A folder that holds no study yet.")],
    like: Annotated[
        str | None,
        Option("--like", metavar="STUDY", help="Copy an example with its code, such as own-model."),
    ] = None,
) -> None:
    """Write a study to begin with: a commented file, or a copy of an example."""
    files = relative(*lab.new_study(folder, like=like))
    answer(False, None, files, f"next: lab plan {folder}, then lab run {folder}")


@app.command()
def run(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    fresh: Annotated[bool, Option("--fresh", help="Archive records, and measure again.")] = False,
    repeat_disturbed: Annotated[
        bool,
        Option("--repeat-disturbed", help="Measure noisy repeats again, and keep the quieter."),
    ] = False,
    snapshot: Annotated[bool, Option("--snapshot", help="Run a copy of today's code.")] = False,
    detach: Annotated[bool, Option("--detach", help="Return at once; see `lab status`.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what is missing of a study, then make its notebooks and its report."""
    loaded = lab.Study.load(study, quick=quick)
    if detach:
        pid = lab.detach(
            loaded, cluster, fresh=fresh, repeat_disturbed=repeat_disturbed, snapshot=snapshot
        )
        text = f"driver {pid} works on {loaded.name}; see `lab status {study}`"
        return answer(as_json, {"pid": pid}, text)
    jobs = lab.launch(
        loaded, cluster, fresh=fresh, repeat_disturbed=repeat_disturbed, snapshot=snapshot
    )
    records = jobs.wait(progress=not as_json)
    report = lab.report(loaded)
    failures = [record for record in records if not record.completed]
    from lab.figures import StudyResults
    from lab.report.sections import prediction_summary

    results = StudyResults(loaded)
    predictions, noise = prediction_summary(results), results.noise.sentence
    content = {
        "predictions": predictions,
        "noise": noise,
        "records": len(records),
        "failed": [record.run_id for record in failures],
        "html": report.html,
        "pdf": report.pdf,
    }
    lines = [f"{len(records) - len(failures)} of {len(records)} runs completed"]
    lines += [predictions] if loaded.kind != "inference" else []
    lines += [noise] if noise else []
    answer(as_json, content, "\n".join([*lines, relative(report.html, report.pdf)]))
    if failures:
        raise LabError("\n".join(map(_failure, failures)))
    return None


def _failure(record: lab.Record) -> str:
    cause = "no cause was recorded"
    if record.error is not None:
        rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
        cause = f"{record.error.type}{rank}: {record.error.message}"
    return f"{record.task.label}: {record.status}: {cause}"


@app.command()
def status(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Show the state of each run of a study, from any terminal."""
    rows = [
        {
            "run": state.task.run.id,
            "configuration": state.task.run.label,
            "repeat": state.task.repeat,
            "state": state.state,
            "step": f"{state.step}/{state.task.run.steps} {state.phase}"
            if state.state == "running"
            else "",
            "seconds": None if state.seconds is None else round(state.seconds, 1),
            "job": state.job_id,
            "reason": state.reason,
        }
        for state in lab.status(lab.Study.load(study, quick=quick))
    ]
    answer(as_json, rows, table_of(rows))


@app.command()
def cancel(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """End the jobs of a study, waiting or running, from any terminal; what is measured stays."""
    ended = lab.cancel(lab.Study.load(study, quick=quick))
    text = f"{count(ended, 'job')} ended; `lab run` goes on from what is measured"
    answer(as_json, {"ended": ended}, text)


@app.command()
def report(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Make the report again from the records; no job is started."""
    made = lab.report(lab.Study.load(study, quick=quick))
    answer(as_json, {"html": made.html, "pdf": made.pdf}, relative(made.html, made.pdf))


@app.command()
def generate(
    study: StudyArgument,
    run: Annotated[
        str,
        Argument(
            metavar="RUN", help="The id of a run that kept its model; else the first that did."
        ),
    ] = "",
    prompt: Annotated[
        list[str] | None, Option("--prompt", help="What the text begins with; may be repeated.")
    ] = None,
    new_tokens: Annotated[int, Option("--new-tokens", min=1, help="Tokens to write.")] = 64,
    temperature: Annotated[float, Option("--temperature", help="0 is greedy, more draws.")] = 0.0,
    top_k: Annotated[int | None, Option("--top-k", help="Draw from the k likeliest.")] = None,
    top_p: Annotated[
        float | None, Option("--top-p", help="Draw from the fewest that hold this probability.")
    ] = None,
    seed: Annotated[int, Option("--seed", min=0, help="Of what is drawn.")] = 0,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the trained model of a run write on from a prompt."""
    prompts = prompt or ["def "]
    texts = lab.generate(
        lab.Study.load(study, quick=quick),
        run,
        prompts=prompts,
        new_tokens=new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    pairs = list(zip(prompts, texts, strict=True))
    content = [{"prompt": prompt, "text": text} for prompt, text in pairs]
    answer(as_json, content, "\n\n".join(map("".join, pairs)))


@app.command()
def plan(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    sbatch: Annotated[
        Path | None,
        Option("--sbatch", metavar="DIR", help="Write the study's job scripts there instead."),
    ] = None,
    best: Annotated[bool, Option("--best", help="Search the fastest that fits instead.")] = False,
    machine: MachineOption = None,
    world_size: Annotated[
        int | None, Option("--world-size", min=1, help="Ranks to plan for, with --best.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the runs of a study: what is measured, what they will take, what cannot run here."""
    loaded = lab.Study.load(study, quick=quick)
    if sbatch is not None:
        paths = [str(path) for path in lab.write_scripts(loaded, cluster, sbatch)]
        return answer(as_json, paths, "\n".join(paths))
    if best:
        searches = lab.best_plans(loaded, cluster, machine=machine, world_size=world_size)
        views: list[str | Table] = []
        for search in searches:
            heading = f"{search.work}\nsearched: {search.space}"
            views += [heading, table_of(search.table()), search.summary]
        return answer(as_json, [search.content() for search in searches], *views)
    if machine is not None or world_size is not None:
        what = "--machine, --world-size"
        raise InputError("plan", [Problem(what, "go with --best alone", "see also `lab predict`")])
    rows = lab.plan(loaded, cluster)
    return answer(as_json, rows, table_of(rows))


@app.command()
def predict(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    world_size: Annotated[
        str | None,
        Option(
            "--world-size", metavar="N,...", help="Ranks to predict for, also beyond the machine."
        ),
    ] = None,
    machine: MachineOption = None,
    profile: Annotated[
        list[str] | None,
        Option("--profile", metavar="STUDY", help="Take runs on one rank from this study too."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict runs of a study, on other world sizes too, and score earlier predictions."""
    began = time.perf_counter()
    predictions = lab.predict(
        lab.Study.load(study, quick=quick),
        cluster,
        world_sizes=None if world_size is None else _world_sizes(world_size),
        machine=machine,
        profiles=[lab.Study.load(other) for other in profile or ()],
    )
    duration = f"{len(predictions.of)} predictions in {time.perf_counter() - began:.2f} s."
    notes = "\n".join([*predictions.notes(), duration])
    answer(as_json, predictions.content(), table_of(predictions.table()), notes)


def _world_sizes(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    problems = [
        Problem("--world-size", f"{part!r} is not a number of ranks", "such as 8,64,512")
        for part in parts
        if not part.isdecimal()
    ]
    if problems:
        raise InputError("predict", problems)
    return [int(part) for part in parts]


@app.command()
def audit(
    source: Annotated[
        str,
        Argument(
            metavar="STUDY_OR_TABLE",
            help="A study, a table of anybody's results, or what nccl-tests printed.",
        ),
    ],
    column: Annotated[
        list[str] | None,
        Option("--column", metavar="NAME=COLUMN", help="What a column of the table is."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what in a study, or in a table of anybody's results, cannot be trusted."""
    pairs = column or []
    problems = [
        Problem("--column", f"{pair!r} is not NAME=COLUMN", "such as world_size=gpus")
        for pair in pairs
        if "=" not in pair
    ]
    if problems:
        raise InputError("audit", problems)
    columns = dict(pair.split("=", 1) for pair in pairs) or None
    result = lab.audit(lab.Study.load(source, quick=True) if quick else source, columns=columns)
    answer(as_json, result, str(result))
    if not result.trustworthy:
        grave = sum(finding.severity != "note" for finding in result.findings)
        raise LabError(
            f"{count(grave, 'finding')} that must be mended before these numbers are believed"
        )


@app.command()
def compare(
    studies: Annotated[
        list[str], Argument(metavar="STUDY...", help="Folders of one study, one per machine.")
    ],
    out: Annotated[
        Path | None,
        Option("--out", help="Where the comparison goes; the first folder's out/ by default."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the same study on several machines: tables, and a page in HTML and PDF."""
    from lab.report.build import report_comparison

    comparison = lab.compare(studies, quick=quick)
    made = report_comparison(comparison, out or next(iter(comparison.studies.values())).out)
    frames = dict(comparison.tables())
    content = {caption: frame.to_dict() for caption, frame in frames.items()}
    views: list[Text | Table] = []
    for caption, frame in frames.items():
        rows = frame.reset_index(names="").to_dict("records")
        views += [Text(caption, style="bold"), table_of(rows)]
    paths = {"html": made.html, "pdf": made.pdf}
    answer(as_json, content | paths, *views, relative(made.html, made.pdf))


course = typer.Typer(no_args_is_help=True, help="The course's lessons.")
app.add_typer(course, name="course")


@course.command()
def lessons(
    folder: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.")],
) -> None:
    """Copy the course's notebooks, with their studies and tables."""
    answer(False, None, relative(*lab.copy_lessons(folder)), "next: jupyter lab, in that folder")


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
    answer(as_json, checks, table_of(rows))
    missing = [check.name for check in checks if check.needed and not check.present]
    if missing:
        raise LabError(f"missing: {', '.join(missing)}")


@app.command()
def calibrate(
    cluster: ClusterOption = "local",
    quick: Annotated[bool, Option("--quick", help="Fewer sizes.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Measure again what is of today.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure collectives, matrix products and memory of a cluster; fit alpha and beta."""
    calibration = lab.calibrate(cluster, quick=quick, fresh=fresh, progress=not as_json)
    from lab.analysis.tables import fits_table, throughput_table

    frames = [fits_table(calibration), throughput_table(calibration)]
    rows = [f.reset_index(drop=f.index.name is None).to_dict("records") for f in frames]
    answer(as_json, calibration, *map(table_of, rows))


@app.command()
def bench(
    what: Annotated[
        str,
        Argument(
            metavar="overhead|losses|predict|planner",
            help="overhead: what measuring costs a step; "
            "losses: whether all strategies learn the same; "
            "predict: how wrong predictions of two ranks are; planner: how long predicting takes.",
        ),
    ],
    quick: Annotated[bool, Option("--quick", help="Fewer rounds, settings and steps.")] = False,
    every: Annotated[
        bool, Option("--all", help="predict: every strategy, quiet and with one core loaded.")
    ] = False,
    cluster: ClusterOption = "local",
    fresh: Annotated[bool, Option("--fresh", help="Predict and measure again.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the lab itself."""
    progress = not as_json
    benchmarks = {
        "overhead": lambda: _overhead(lab.benchmarks.overhead(quick=quick)),
        "losses": lambda: _equal_losses(lab.equal_losses(quick=quick)),
        "predict": lambda: (
            _held_out(lab.benchmarks.held_out(cluster, quick=quick, fresh=fresh, progress=progress))
            if not every
            else _held_out_strategies(
                lab.benchmarks.held_out_strategies(
                    cluster, quick=quick, fresh=fresh, progress=progress
                )
            )
        ),
        "planner": lambda: _planner_speed(lab.benchmarks.planner_speed()),
    }
    if what not in benchmarks:
        raise InputError("bench", [Problem(what, "no such benchmark", nearest(what, benchmarks))])
    if every and what != "predict":
        raise InputError("bench", [Problem("--all", f"no option of {what}", "with predict")])
    content, views, failure = benchmarks[what]()
    answer(as_json, content, *views)
    if failure:
        raise LabError(failure)


Verdict = tuple[Any, list[str | Table], str]  # content, views, and why it is not good enough


def _overhead(result: lab.benchmarks.Overhead) -> Verdict:
    limit, noise = lab.benchmarks.LIMIT, abs(result.control.median - 1)
    failure = f"measuring costs more than the limit of {limit}"
    if noise > limit - 1:
        failure += f", but two plain loops differ by {noise:.1%} too: try again on an idle machine"
    return result, [str(result)], "" if result.within_limit else failure


def _equal_losses(results: list[lab.benchmarks.EqualLoss]) -> Verdict:
    verdicts = {True: "yes", False: "NO", None: "not run"}
    formats = {
        "final_loss": ".5f",
        "validation_loss": ".5f",
        "difference": ".1e",
        "tolerance": ".0e",
    }
    rows = []
    for result in results:
        row: dict[str, str | None] = {"run": result.name}
        for name, spec in formats.items():
            value = getattr(result, name)
            row[name.replace("_", " ")] = None if value is None else format(value, spec)
        reason = f": {result.reason}" if result.reason else ""
        rows.append(row | {"equal": verdicts[result.equal] + reason})
    content = [dataclasses.asdict(result) | {"equal": result.equal} for result in results]
    unequal = [result.name for result in results if result.equal is False]
    failure = f"these do not learn what single does: {', '.join(unequal)}" if unequal else ""
    return content, [table_of(rows)], failure


def _held_out(result: lab.benchmarks.HeldOut) -> Verdict:
    limit = lab.benchmarks.ERROR_LIMIT
    content = {"error": result.error, "memory_error": result.memory_error, "limit": limit}
    error = f"predictions are {100 * result.error:.1f} % off on average"
    failure = "" if result.within_limit else f"{error}, the limit is {100 * limit:.0f} %"
    return content | {"scores": result.scores}, [table_of(result.table()), str(result)], failure


def _held_out_strategies(result: lab.benchmarks.HeldOutStrategies) -> Verdict:
    content = {
        "inside": result.inside,
        "half_width": result.half_width,
        "errors": result.errors(),
        "misses": result.misses(),
        "scores": {name: one.scores for name, one in result.conditions.items()},
    }
    views: list[str | Table] = [table_of(result.table()), table_of(result.summary()), str(result)]
    return content, views, "; ".join(result.misses())


def _planner_speed(result: lab.benchmarks.Speed) -> Verdict:
    failure = "" if result.within_limit else "predicting takes longer than its limits"
    return result, [str(result)], failure
