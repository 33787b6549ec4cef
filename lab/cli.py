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

import lab
from lab.errors import InputError, LabError, Problem, nearest


def _keep_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix="lab-traceback-", suffix=".txt", text=True)
    with os.fdopen(handle, "w") as stream:
        stream.write(traceback.format_exc())
    return Path(name)


def main() -> None:
    """Run the command; exit status 0 done, 1 something failed, 2 unusable input; never a traceback."""
    errors = Console(stderr=True)
    try:
        status = app(standalone_mode=False) or 0
    except LabError as error:
        errors.print(f"lab: {error}", highlight=False, markup=False, soft_wrap=True)
        status = error.exit_status
    except UsageError as error:
        errors.print(
            f"lab: {error.format_message()} See `lab --help`.",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        errors.print("lab: interrupted; the same command goes on from there")
        status = 1
    except BrokenPipeError:
        status = 1
    except Exception as error:  # noqa: BLE001 a user is told, and the traceback is kept for whoever mends it
        errors.print(
            f"lab: a fault of the lab itself: {type(error).__name__}: {error}\nlab: traceback in {_keep_traceback()}",
            soft_wrap=True,
        )
        status = 1
    sys.exit(status if isinstance(status, int) else 0)


# Typer carries its own click or uses the installed one; this is the right one's error of a wrong command line.
UsageError: Any = typer.BadParameter.__mro__[1]
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Scaling Lab: how does training scale here, and why?",
)
WIDE = 200  # columns for a file or a pipe, in which nothing need be broken; a terminal says its own
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDE)
StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A folder under reports/, by name or by path.")
]
ClusterOption = Annotated[
    str,
    typer.Option("--cluster", metavar="PROFILE", help="A profile of slurm/, by name or by path."),
]
QuickOption = Annotated[bool, typer.Option("--quick", help="The study's smallest honest form.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer for programs.")]


def answer(as_json: bool, content: Any, text: str | Table) -> None:
    """Print the content as JSON, or the text for people."""
    if as_json:
        sys.stdout.write(json.dumps(content, indent=1, default=_plain) + "\n")
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=isinstance(text, str))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def table_of(rows: Sequence[Mapping[Any, Any]]) -> Table:
    """A table with a column for each key of the first row; numbers stand to the right."""
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0] if rows else ():
        numeric = all(
            row[key] is None or str(row[key]).replace(".", "", 1).strip("% ").isdigit()
            for row in rows
        )
        shown.add_column(str(key), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    return shown


def shown(path: Path) -> str:
    """A path as seen from here."""
    return os.path.relpath(path)


@app.command()
def run(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Measure again what is measured; old records are set aside."),
    ] = False,
    snapshot: Annotated[
        bool,
        typer.Option("--snapshot", help="Jobs run a copy of today's code, however it is edited."),
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return at once; `lab status` tells how far it is.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what is missing of a study, then make its notebooks and its report."""
    loaded = lab.Study.load(study, quick=quick)
    if detach:
        pid = lab.detach(loaded, cluster, fresh=fresh, snapshot=snapshot)
        answer(
            as_json, {"pid": pid}, f"driver {pid} works on {loaded.name}; see `lab status {study}`"
        )
        return
    jobs = lab.launch(loaded, cluster, fresh=fresh, snapshot=snapshot)
    records = jobs.wait(progress=not as_json)
    made = lab.report(loaded)
    failures = [record for record in records if not record.completed]
    from lab.report.sections import predictions_of

    told = predictions_of(loaded)
    content = {
        "predictions": told,
        "records": len(records),
        "failed": [record.run_id for record in failures],
        "html": str(made.html),
        "pdf": str(made.pdf),
    }
    ran = f"{len(records) - len(failures)} of {len(records)} runs completed"
    expected = [told] if loaded.kind == "training" else []
    answer(as_json, content, "\n".join([ran, *expected, shown(made.html), shown(made.pdf)]))
    if failures:
        raise LabError(
            "\n".join(
                f"{record.task.label}: {record.status}: {_cause(record)}" for record in failures
            )
        )


@app.command()
def status(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Show where each run of a study stands, from any terminal."""
    states = lab.status(lab.Study.load(study, quick=quick))
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
        for state in states
    ]
    answer(as_json, rows, table_of(rows))


@app.command()
def cancel(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """End the jobs of a study, waiting or running, from any terminal; what is measured stays."""
    ended = lab.cancel(lab.Study.load(study, quick=quick))
    answer(
        as_json,
        {"ended": ended},
        f"{ended} job{'s' * (ended != 1)} ended; `lab run` goes on from what is measured",
    )


@app.command()
def report(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Make the report again from the records; no job is started."""
    made = lab.report(lab.Study.load(study, quick=quick))
    answer(
        as_json,
        {"html": str(made.html), "pdf": str(made.pdf)},
        f"{shown(made.html)}\n{shown(made.pdf)}",
    )


@app.command()
def generate(
    study: StudyArgument,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The id of a run that kept its model; else the first that did."
        ),
    ] = "",
    prompt: Annotated[
        list[str] | None,
        typer.Option("--prompt", help="What the text begins with; may be repeated."),
    ] = None,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", min=1, help="Tokens that are written.")
    ] = 64,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0 takes the likeliest token, more draws.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Draw from so many of the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", help="Draw from the fewest that hold this probability."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")] = 0,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the trained model of a run write on from a prompt."""
    prompts = prompt or ["def "]
    loaded = lab.Study.load(study, quick=quick)
    texts = lab.generate(
        loaded,
        run,
        prompts=prompts,
        new_tokens=new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    pairs = list(zip(prompts, texts, strict=True))
    answer(
        as_json,
        [{"prompt": given, "text": text} for given, text in pairs],
        "\n\n".join(map("".join, pairs)),
    )


def _cause(record: lab.Record) -> str:
    if record.error is None:
        return "no cause was recorded"
    rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
    return f"{record.error.type}{rank}: {record.error.message}"


MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="NAME",
        help="Ask about a described machine instead, such as h100x8:nvlink4:infiniband-ndr.",
    ),
]


@app.command()
def plan(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    sbatch: Annotated[
        Path | None,
        typer.Option(
            "--sbatch",
            metavar="DIR",
            help="Write the study's job scripts there instead.",
            show_default=False,
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Search the fastest way that fits into memory instead.")
    ] = False,
    machine: MachineOption = None,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Ranks to plan for, with --best.")
    ] = None,
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
            raise InputError(
                "plan",
                [
                    Problem(
                        "--machine, --world-size", "go with --best alone", "see also `lab predict`"
                    )
                ],
            )
        rows = lab.plan(loaded, cluster)
        answer(as_json, rows, table_of(rows))
        return
    searches = lab.best_plans(loaded, cluster, machine=machine, world_size=world_size)
    answer(as_json, [search.content() for search in searches], "")
    for search in () if as_json else searches:
        console.print(
            f"{search.work}\nsearched: {search.space}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        console.print(table_of(search.table()))
        console.print(search.summary, highlight=False, markup=False, soft_wrap=True)


@app.command()
def predict(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    world_size: Annotated[
        str | None,
        typer.Option(
            "--world-size", metavar="N,...", help="Ranks to predict for, also beyond the machine."
        ),
    ] = None,
    machine: MachineOption = None,
    profile: Annotated[
        list[str] | None,
        typer.Option(
            "--profile", metavar="STUDY", help="Take runs on one rank from this study too."
        ),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what the runs of a study will take, on other world sizes too, and how wrong earlier predictions were."""
    began = time.perf_counter()
    loaded = lab.Study.load(study, quick=quick)
    profiles = [lab.Study.load(other) for other in profile or ()]
    found = lab.predict(
        loaded, cluster, world_sizes=_sizes(world_size), machine=machine, profiles=profiles
    )
    answer(as_json, found.content(), table_of(found.table()))
    if not as_json:
        told = [
            *found.notes(),
            f"{len(found.of)} predictions in {time.perf_counter() - began:.2f} s.",
        ]
        console.print("\n".join(told), highlight=False, markup=False, soft_wrap=True)


def _sizes(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise InputError(
            "predict",
            [
                Problem("--world-size", f"{part!r} is no number of ranks", "such as 8,64,512")
                for part in wrong
            ],
        )
    return [int(part) for part in parts]


@app.command()
def audit(
    source: Annotated[
        str,
        typer.Argument(
            metavar="STUDY_OR_TABLE",
            help="A study, a CSV of anybody's results, or what nccl-tests printed.",
        ),
    ],
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME=COLUMN", help="What a column of the table is."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what in a study, or in a table of anybody's results, cannot be trusted."""
    found = lab.audit(
        lab.Study.load(source, quick=True) if quick else source, columns=_mapping(column or [])
    )
    answer(as_json, found.model_dump(mode="json"), str(found))
    if not found.trustworthy:
        grave = sum(finding.severity != "note" for finding in found.findings)
        raise LabError(
            f"{grave} finding{'s' * (grave > 1)} that must be mended before these numbers are believed"
        )


@app.command()
def compare(
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY...", help="Folders of one study, one per machine.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Where the comparison goes; the first folder's out/ by default."
        ),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the same study on several machines side by side: tables, and a page in HTML and PDF."""
    from lab.report.build import report_comparison

    found = lab.compare(studies, quick=quick)
    made = report_comparison(found, out or next(iter(found.studies.values())).out)
    tables = dict(found.tables())
    answer(
        as_json,
        {caption: frame.to_dict() for caption, frame in tables.items()}
        | {"html": str(made.html), "pdf": str(made.pdf)},
        "",
    )
    if not as_json:
        for caption, frame in tables.items():
            console.print(caption, style="bold")
            console.print(table_of(frame.reset_index(names="").to_dict("records")))
        console.print(f"{shown(made.html)}\n{shown(made.pdf)}", highlight=False, soft_wrap=True)


def _mapping(columns: list[str]) -> dict[str, str] | None:
    wrong = [
        Problem("--column", f"{pair!r} is no NAME=COLUMN", "such as world_size=gpus")
        for pair in columns
        if "=" not in pair
    ]
    if wrong:
        raise InputError("audit", wrong)
    return dict(pair.split("=", 1) for pair in columns) or None


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
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what was measured today.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the collectives by size, matrix products and memory of a cluster, and fit alpha and beta."""
    found = lab.calibrate(cluster, quick=quick, fresh=fresh, progress=not as_json)
    if as_json:
        answer(as_json, found.model_dump(mode="json"), "")
        return
    from lab.analysis.tables import fits_table, throughput_table

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
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Fewer rounds, settings of each strategy, steps and repeats."),
    ] = False,
    cluster: ClusterOption = "local",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Predict and measure again what is measured.")
    ] = False,
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
        raise LabError(
            f"measuring costs more than the limit of {limit}{noisy if noise > limit - 1 else ''}"
        )


def _score_predictions(cluster: str, *, quick: bool, fresh: bool, as_json: bool) -> None:
    from lab.launch.bench import ERROR_LIMIT, held_out

    found = held_out(cluster, quick=quick, fresh=fresh, progress=not as_json)
    content = {
        "error": found.error,
        "memory_error": found.memory_error,
        "limit": ERROR_LIMIT,
        "scores": list(found.scores),
    }
    answer(as_json, content, table_of(found.table()))
    if not as_json:
        console.print(str(found), highlight=False, markup=False, soft_wrap=True)
    if not found.within_limit:
        raise LabError(
            f"predictions are {100 * found.error:.1f} % off on average, the limit is {100 * ERROR_LIMIT:.0f} %"
        )


def _time_planner(*, as_json: bool) -> None:
    from lab.launch.bench import planner_speed

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
            "validation loss": None
            if row.validation_loss is None
            else f"{row.validation_loss:.5f}",
            "difference": None if row.difference is None else f"{row.difference:.1e}",
            "tolerance": f"{row.tolerance:.0e}",
            "equal": verdicts[row.equal] + (f": {row.reason}" if row.reason else ""),
        }
        for row in found
    ]
    answer(
        as_json, [dataclasses.asdict(row) | {"equal": row.equal} for row in found], table_of(rows)
    )
    unequal = [row.name for row in found if row.equal is False]
    if unequal:
        raise LabError(f"these do not learn what single does: {', '.join(unequal)}")
