"""The `lab` command: each verb calls one function of the public API and prints its answer."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
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

# Typer carries its own click or uses the installed one; this is the right one's error of a wrong command line.
UsageError: Any = typer.BadParameter.__mro__[1]
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Scaling Lab: how does training scale here, and why?",
)
console = Console()

StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A folder under reports/, by name or by path.")]
ClusterOption = Annotated[str, typer.Option("--cluster", metavar="PROFILE", help="A profile of slurm/, by name or by path.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="The study's smallest honest form.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer for programs.")]


@app.command()
def run(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is measured; old records are set aside.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; `lab status` tells how far it is.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what is missing of a study, then make its notebooks and its report."""
    loaded = lab.Study.load(study, quick=quick)
    if detach:
        pid = lab.detach(loaded, cluster, fresh=fresh)
        _answer(as_json, {"pid": pid}, f"driver {pid} works on {loaded.name}; see `lab status {study}`")
        return
    jobs = lab.launch(loaded, cluster, fresh=fresh)
    records = jobs.wait(progress=not as_json)
    made = lab.report(loaded)
    failures = [record for record in records if not record.completed]
    content = {
        "records": len(records),
        "failed": [record.run_id for record in failures],
        "html": str(made.html),
        "pdf": str(made.pdf),
    }
    _answer(
        as_json,
        content,
        f"{len(records) - len(failures)} of {len(records)} runs completed\n{_shown(made.html)}\n{_shown(made.pdf)}",
    )
    if failures:
        raise LabError("\n".join(f"{record.task.label}: {record.status}: {_cause(record)}" for record in failures))


@app.command()
def plan(study: StudyArgument, cluster: ClusterOption = "local", quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Show the runs of a study: what is measured already, and what cannot run on this cluster."""
    rows = lab.plan(lab.Study.load(study, quick=quick), cluster)
    _answer(as_json, rows, _table(rows))


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
            "step": f"{state.step}/{state.task.run.steps} {state.phase}" if state.state == "running" else "",
            "seconds": None if state.seconds is None else round(state.seconds, 1),
        }
        for state in states
    ]
    _answer(as_json, rows, _table(rows))


@app.command()
def report(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Make the report again from the records; no job is started."""
    made = lab.report(lab.Study.load(study, quick=quick))
    _answer(as_json, {"html": str(made.html), "pdf": str(made.pdf)}, f"{_shown(made.html)}\n{_shown(made.pdf)}")


@app.command()
def audit(
    source: Annotated[str, typer.Argument(metavar="STUDY_OR_TABLE", help="A study, or a CSV of anybody's results.")],
    column: Annotated[
        list[str] | None, typer.Option("--column", metavar="NAME=COLUMN", help="What a column of the table is.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what in a study, or in a table of anybody's results, cannot be trusted."""
    found = lab.audit(lab.Study.load(source, quick=True) if quick else source, columns=_mapping(column or []))
    _answer(as_json, found.model_dump(mode="json"), str(found))
    if not found.trustworthy:
        grave = sum(finding.severity != "note" for finding in found.findings)
        raise LabError(f"{grave} finding{'s' * (grave > 1)} that must be mended before these numbers are believed")


@app.command()
def compare(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Folders of one study, one per machine.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where the comparison goes; the first folder's out/ by default.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Set the same study on several machines side by side: tables, and a page in HTML and PDF."""
    found = lab.compare(studies, quick=quick)
    made = lab.comparing.report_comparison(found, out or next(iter(found.studies.values())).out)
    tables = found.tables()
    _answer(
        as_json, {table.caption: table.frame.to_dict() for table in tables} | {"html": str(made.html), "pdf": str(made.pdf)}, ""
    )
    if not as_json:
        for table in tables:
            console.print(table.caption, style="bold")
            console.print(_table(table.frame.reset_index(names="").to_dict("records")))
        console.print(f"{_shown(made.html)}\n{_shown(made.pdf)}", highlight=False, soft_wrap=True)


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
        _answer(as_json, found.model_dump(mode="json"), "")
        return
    for frame in (lab.calibration.fits_table(found), lab.calibration.throughput_table(found)):
        console.print(_table(frame.reset_index(drop=frame.index.name is None).to_dict("records")))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="overhead", help="overhead: what measuring costs a step.")],
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the lab itself."""
    if what != "overhead":
        raise InputError("bench", [Problem(what, "no such benchmark", nearest(what, ["overhead"]))])
    found = lab.benchmarks.overhead(quick=quick)
    _answer(as_json, dataclasses.asdict(found), str(found))
    if not found.within_limit:
        raise LabError(f"measuring costs more than the limit of {lab.benchmarks.LIMIT}")


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
    _answer(as_json, [vars(check) for check in checks], _table(rows))
    missing = [check.name for check in checks if check.needed and not check.present]
    if missing:
        raise LabError(f"missing: {', '.join(missing)}")


def _mapping(columns: list[str]) -> dict[str, str] | None:
    wrong = [Problem("--column", f"{pair!r} is no NAME=COLUMN", "such as world_size=gpus") for pair in columns if "=" not in pair]
    if wrong:
        raise InputError("audit", wrong)
    return dict(pair.split("=", 1) for pair in columns) or None


def _answer(as_json: bool, content: Any, text: str | Table) -> None:
    if as_json:
        sys.stdout.write(json.dumps(content, indent=1, default=_plain) + "\n")
    else:
        console.print(text, highlight=False, markup=False, soft_wrap=isinstance(text, str))


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def _table(rows: Sequence[Mapping[Any, Any]]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for key in rows[0] if rows else ():
        numeric = all(row[key] is None or str(row[key]).replace(".", "", 1).strip("% ").isdigit() for row in rows)
        shown.add_column(str(key), justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        shown.add_row(*("" if value is None else escape(str(value)) for value in row.values()))
    return shown


def _shown(path: Path) -> str:
    return os.path.relpath(path)


def _cause(record: lab.Record) -> str:
    if record.error is None:
        return "no cause was recorded"
    rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
    return f"{record.error.type}{rank}: {record.error.message}"


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
        errors.print(f"lab: {error.format_message()} See `lab --help`.", highlight=False, markup=False, soft_wrap=True)
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
