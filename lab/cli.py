"""The `lab` command: each verb calls one function of the public API and prints its answer."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import lab
from lab.errors import InputError, LabError, Problem, nearest

if TYPE_CHECKING:
    from lab.config.study import Task

GAP = "  "  # between two columns
View = str | Text | Table  # of an answer, for people
INTERRUPTED = 130  # as shells report for a command ended by Ctrl-C
WIDE = 200  # columns for a file or a pipe, in which nothing need be broken; a terminal has its own


def _open_streams() -> None:
    """Give closed streams a target, or the next file to be opened would become one of them."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


_open_streams()
# The error for a wrong command line, from the click bundled with typer or the installed one.
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
YesOption = Annotated[bool, Option("--yes", help="Run even beyond the cluster's budget.")]
ColumnOption = Annotated[
    list[str] | None,
    Option("--column", metavar="NAME=COLUMN", help="Read COLUMN of the table as NAME."),
]
MachineOption = Annotated[
    str | None,
    Option(
        "--machine",
        metavar="NAME",
        help="Ask about a described machine instead, such as h100x8:nvlink4:infiniband-ndr.",
    ),
]


def main() -> None:
    """Run the command; exit status 0 done, 1 failed, 2 unusable input, 130 interrupted."""
    message, status = "", 1
    try:
        status = app(standalone_mode=False) or 0
    except LabError as error:
        message, status = str(error), error.exit_status
    except UsageError as error:
        message, status = f"{error.format_message()} See `lab --help`.", 2
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        # Nobody reads the remaining output, nor Python's complaint about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        message = f"{error.filename or 'output'}: {error.strerror or error}"
    except Exception as error:  # noqa: BLE001 the traceback is kept for whoever fixes it
        fault = f"an error in the lab itself: {type(error).__name__}: {error}"
        message = f"{fault}\nlab: traceback in {_write_traceback()}"
    if status == INTERRUPTED:  # which typer also returns for it
        message = message or "interrupted; the same command resumes from there"
    if message:
        Console(stderr=True).print(f"lab: {message}", highlight=False, markup=False, soft_wrap=True)
    sys.exit(status if isinstance(status, int) else 0)


def _write_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix="lab-traceback-", suffix=".txt", text=True)
    with os.fdopen(handle, "w") as stream:
        stream.write(traceback.format_exc())
    return Path(name)


def answer(as_json: bool, content: Any, *views: View) -> None:
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


def table_of(rows: Sequence[Mapping[Any, Any]]) -> Table | Text:
    """A table with a column for each key that has a value; numbers are right-aligned."""
    names = rows[0] if rows else ()
    keys = [name for name in names if any(row[name] not in (None, "") for row in rows)]
    heads = [str(key) for key in keys]
    columns = [["" if row[key] is None else str(row[key]) for row in rows] for key in keys]
    sides: list[Literal["left", "right"]] = ["right" if _numeric(c) else "left" for c in columns]
    widths = [max(map(cell_len, [head, *c])) for head, c in zip(heads, columns, strict=True)]
    one_line = not any("\n" in cell for column in columns for cell in column)
    if one_line and sum(widths) + len(GAP) * len(widths) <= console.width:
        # Rich takes 0.3 s longer for a thousand rows, as it could also fold cells.
        lines = [heads, *zip(*columns, strict=True)]
        head, *rest = (GAP.join(map(_aligned, line, widths, sides)).rstrip() for line in lines)
        return Text("\n").join([Text(head, "bold"), *map(Text, rest)])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head, side in zip(heads, sides, strict=True):
        table.add_column(head, justify=side, overflow="fold")
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return table


def _numeric(cells: Sequence[str]) -> bool:
    return all(cell.replace(".", "", 1).strip("% ").isdigit() for cell in cells if cell)


def _aligned(cell: str, width: int, side: Literal["left", "right"]) -> str:
    space = " " * (width - cell_len(cell))
    return space + cell if side == "right" else cell + space


def relative(*paths: Path) -> str:
    """Paths relative to the current directory, one per line."""
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
    fresh: Annotated[bool, Option("--fresh", help="Archive records and measure again.")] = False,
    repeat_disturbed: Annotated[
        bool,
        Option("--repeat-disturbed", help="Measure noisy repeats again; the quieter one counts."),
    ] = False,
    snapshot: Annotated[
        bool, Option("--snapshot", help="Run a copy of the code as it is now.")
    ] = False,
    detach: Annotated[bool, Option("--detach", help="Return at once; see `lab status`.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what is missing from a study, then make its notebooks and its report."""
    loaded = lab.Study.load(study, quick=quick)
    if detach:
        pid = lab.detach(
            loaded,
            cluster,
            fresh=fresh,
            repeat_disturbed=repeat_disturbed,
            snapshot=snapshot,
            yes=yes,
        )
        text = f"driver {pid} is working on {loaded.name}; see `lab status {study}`"
        return answer(as_json, {"pid": pid}, text)
    jobs = lab.launch(
        loaded,
        cluster,
        fresh=fresh,
        repeat_disturbed=repeat_disturbed,
        snapshot=snapshot,
        yes=yes,
    )
    return _finish(loaded, jobs, as_json=as_json)


@app.command()
def measure(
    command: Annotated[
        list[str], Argument(metavar="-- SCRIPT ARGS", help="A Python script and its arguments.")
    ],
    ranks: Annotated[str, Option("--ranks", metavar="N,...", help="Numbers of ranks.")] = "1,2",
    steps: Annotated[int, Option("--steps", help="Optimizer steps until it is ended.")] = 60,
    warmup_steps: Annotated[
        int, Option("--warmup-steps", help="How many of them are left out of all measurements.")
    ] = 10,
    repeats: Annotated[int, Option("--repeats", help="Separate jobs of each number of ranks.")] = 3,
    scaling: Annotated[
        str,
        Option(
            metavar="strong|weak|none",
            help="What the script holds fixed: the global batch (strong) or a rank's (weak).",
        ),
    ] = "none",
    global_batch_size: Annotated[
        int | None, Option("--global-batch-size", help="Samples in a step of all ranks, if fixed.")
    ] = None,
    micro_batch_size: Annotated[
        int | None, Option("--micro-batch-size", help="Samples in a step of one rank, if fixed.")
    ] = None,
    launcher: Annotated[
        str,
        Option(
            metavar="torchrun|python",
            help="Whose environment variables it gets; python sets none, and has one rank.",
        ),
    ] = "torchrun",
    name: Annotated[
        str | None,
        Option("--name", metavar="STUDY", help="The study's folder; by default the script's name."),
    ] = None,
    cluster: ClusterOption = "local",
    fresh: Annotated[bool, Option("--fresh", help="Archive records and measure again.")] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure any training script, unchanged, on several numbers of ranks, and report on it."""
    from lab.config.new_study import restored_if_refused, script_folder

    with restored_if_refused(script_folder(command, name)):
        study = lab.script_study(
            command,
            ranks=_numbers(ranks, "--ranks", "measure", "such as 1,2,4"),
            folder=name,
            steps=steps,
            warmup_steps=warmup_steps,
            repeats=repeats,
            scaling=scaling,  # type: ignore[arg-type] # a wrong one is a problem of the study
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            launcher=launcher,
        )
        jobs = lab.launch(study, cluster, fresh=fresh, yes=yes)
    _finish(study, jobs, as_json=as_json)


def _finish(loaded: lab.Study, jobs: lab.Jobs, *, as_json: bool) -> None:
    """Wait for jobs, make the report, and name what failed."""
    from lab.records.store import other_commands

    records = jobs.wait(progress=not as_json)
    quiet = Console(quiet=True) if as_json else console  # a terminal alone shows it
    with quiet.status("making the notebooks and the report"):
        report = lab.report(loaded, runs=True)
    failures = [record for record in records if not record.completed]
    content = {
        "answer": report.answer,
        "predictions": report.predictions,
        "noise": report.noise,
        "records": len(records),
        "failed": [record.run_id for record in failures],
        "html": report.html,
        "pdf": report.pdf,
    }
    lines = [f"{len(records) - len(failures)} of {len(jobs.tasks)} runs completed"]
    lines += [report.predictions] if loaded.kind != "inference" else []
    content["kept"] = kept = other_commands(loaded)
    lines += [report.answer, relative(report.html, report.pdf), *kept]
    lines += _next_steps(loaded, records)
    answer(as_json, content, "\n".join(lines))
    recorded = {record.task for record in records}
    ended = [(record.task, _cause(record)) for record in failures]
    ended += [(task, "no record") for task in jobs.tasks if task not in recorded]
    if ended:
        raise LabError("\n".join(_by_cause(ended)))


def _next_steps(study: lab.Study, records: Sequence[lab.Record]) -> list[str]:
    """What to try after a study, as commands."""
    if not any(record.completed for record in records):
        return [f"next: {study.command('status')}  # which runs failed, and why"]
    steps = {study.command("audit"): "what in these numbers cannot be trusted"}
    places = [record.environment for record in records if record.environment]
    predictable = study.kind == "training" and not any(run.script for run in study.runs)
    if predictable and places and not places[0].replay:
        beyond = 4 * max(run.world_size for run in study.runs)
        command = study.command("predict", {place.profile for place in places})
        steps[f"{command} --world-size {beyond}"] = "what more ranks would bring"
    if study.quick:
        steps[study.command("run").removesuffix(" --quick")] = "the whole study"
    else:
        steps["lab init my-study"] = "a study of your own"
    width = max(map(len, steps))
    return [f"next: {command:{width}}  # {why}" for command, why in steps.items()]


def _by_cause(ended: Sequence[tuple[Task, str]]) -> Iterator[str]:
    """Each cause once, with the first task that it ended and the number of others."""
    tasks: dict[str, list[Task]] = {}
    for task, cause in ended:
        tasks.setdefault(cause, []).append(task)
    for cause, (first, *others) in tasks.items():
        more = f" and {count(len(others), 'other')}" if others else ""
        yield f"{first.label}{more}: {cause}"


def _cause(record: lab.Record) -> str:
    if record.error is None:
        return f"{record.status}: no cause was recorded"
    rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
    return f"{record.status}{rank}: {record.error.cause}"


@app.command()
def status(
    study: StudyArgument,
    watch: Annotated[
        bool, Option("--watch", help="Stay live until all has ended or no driver is at work.")
    ] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of each run of a study, from any terminal."""
    from lab.launch.status import watch as watched

    loaded = lab.Study.load(study, quick=quick)
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
        for state in (watched(loaded) if watch else lab.status(loaded))
    ]
    answer(as_json, rows, table_of(rows))


@app.command()
def cancel(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """End the jobs of a study, waiting or running, from any terminal; its records are kept."""
    ended = lab.cancel(lab.Study.load(study, quick=quick))
    text = f"{count(ended, 'job')} ended; `lab run` measures what is missing"
    answer(as_json, {"ended": ended}, text)


@app.command()
def report(
    source: Annotated[
        str,
        Argument(
            metavar="STUDY_OR_TABLE",
            help="A study, or a table of anybody's results; with --all, the folder of studies.",
        ),
    ] = "",
    every: Annotated[
        bool, Option("--all", help="Report on all studies with records, with an index.")
    ] = False,
    artifacts: Annotated[
        bool, Option("--artifacts", help="Also write a study's text, figures and tables as files.")
    ] = False,
    keep: Annotated[
        bool,
        Option(
            "--keep",
            help="Write small files for a repository to STUDY/kept/; with --all, rewrite all.",
        ),
    ] = False,
    title: Annotated[str | None, Option("--title", help="Title of a table's report.")] = None,
    scaling: Annotated[
        str | None,
        Option(
            "--scaling", metavar="strong|weak|auto", help="Scaling of a table that leaves it open."
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            "--baseline", metavar="world_size=N", help="Baseline of a table; else its fewest ranks."
        ),
    ] = None,
    gpu_hours: Annotated[
        float | None, Option("--gpu-hours", metavar="H", help="GPU-hours that a proposal asks for.")
    ] = None,
    column: ColumnOption = None,
    out: Annotated[
        Path | None,
        Option("--out", metavar="DIR", help="Folder of a table's report; else beside the table."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the report of a study from its records, or of a table; no job is started."""
    from lab.analysis.reported import is_table

    if every:
        from lab.report.gallery import gallery, remake_kept

        studies = Path(source or "reports")
        if keep:
            files = remake_kept(studies)
            return answer(as_json, {"files": files}, relative(*files))
        index, readme = gallery(studies)
        return answer(as_json, {"index": index, "readme": readme}, relative(index, readme))
    if not source:
        problem = Problem("STUDY", "missing", "name a study, or give --all")
        raise InputError("report", [problem])
    if is_table(source):
        given = [name for name, on in {"--artifacts": artifacts, "--keep": keep}.items() if on]
        if given:
            problems = [Problem(name, "is only for studies", "leave it out") for name in given]
            raise InputError("report", problems)
        made = lab.report_table(
            source,
            columns=_columns(column, "report"),
            scaling=_scaling(scaling),
            baseline=_baseline(baseline),
            title=title,
            gpu_hours=gpu_hours,
            out=out,
        )
    else:
        options: dict[str, object] = {"--title": title, "--scaling": scaling, "--out": out}
        options |= {"--baseline": baseline, "--gpu-hours": gpu_hours, "--column": column}
        problems = [
            Problem(name, "is only for tables", "a study sets its own in study.yaml")
            for name, value in options.items()
            if value is not None
        ]
        study = lab.Study.load(source, quick=quick)
        if problems:
            raise InputError("report", problems)
        if keep:
            from lab.report.kept import keep as keep_report

            files = keep_report(study)
            return answer(as_json, {"files": files}, relative(*files))
        made = lab.report(study, artifacts=artifacts)
    content = {"html": made.html, "pdf": made.pdf, "artifacts": made.artifacts}
    return answer(as_json, content, relative(made.html, made.pdf, *made.artifacts))


def _scaling(text: str | None) -> Any:
    choices = ("auto", "strong", "weak")
    if text is not None and text not in choices:
        problem = Problem("--scaling", f"unknown scaling {text!r}", nearest(text, choices))
        raise InputError("report", [problem])
    return text or "auto"


def _baseline(text: str | None) -> int | None:
    if text is None:
        return None
    size = text.removeprefix("world_size=")
    if not size.isdecimal() or int(size) < 1:
        problem = Problem("--baseline", f"{text!r} is not world_size=N", "such as world_size=4")
        raise InputError("report", [problem])
    return int(size)


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
    temperature: Annotated[
        float, Option("--temperature", help="0 is greedy, above it samples.")
    ] = 0.0,
    top_k: Annotated[int | None, Option("--top-k", help="Sample from the k likeliest.")] = None,
    top_p: Annotated[
        float | None, Option("--top-p", help="Sample from the fewest with this probability.")
    ] = None,
    seed: Annotated[int, Option("--seed", min=0, help="Seed of the sampling.")] = 0,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the trained model of a run continue a prompt."""
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
    best: Annotated[bool, Option("--best", help="Search for the fastest that fits.")] = False,
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
        views: list[View] = []
        for search in searches:
            heading = f"{search.work}\nsearched: {search.space}"
            views += [heading, table_of(search.table()), search.summary]
        return answer(as_json, [search.content() for search in searches], *views)
    if machine is not None or world_size is not None:
        what = "--machine, --world-size"
        raise InputError("plan", [Problem(what, "are only for --best", "see also `lab predict`")])
    rows = lab.plan(loaded, cluster)
    from lab.launch.plan import hours_sentence

    hours = hours_sentence(loaded, lab.Cluster.load(cluster), rows)
    unused = {"gpu_hours"} if not any(row["gpu_hours"] for row in rows) else set()
    shown = [{key: cell for key, cell in row.items() if key not in unused} for row in rows]
    return answer(as_json, rows, table_of(shown), hours)


@app.command()
def predict(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    world_size: Annotated[
        str | None,
        Option(
            "--world-size", metavar="N,...", help="Ranks to predict for, even beyond the machine."
        ),
    ] = None,
    machine: MachineOption = None,
    profile: Annotated[
        list[str] | None,
        Option("--profile", metavar="STUDY", help="Also use this study's runs on one rank."),
    ] = None,
    explain: Annotated[
        bool,
        Option("--explain", help="STUDY is a table of layouts; explain each measured step."),
    ] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict runs of a study, on other world sizes too, and score earlier predictions."""
    if explain:
        explanations = lab.explain_layouts(study)
        return answer(as_json, explanations, table_of([one.table_row() for one in explanations]))
    began = time.perf_counter()
    predictions = lab.predict(
        lab.Study.load(study, quick=quick),
        cluster,
        world_sizes=None
        if world_size is None
        else _numbers(world_size, "--world-size", "predict", "such as 8,64,512"),
        machine=machine,
        profiles=[lab.Study.load(other) for other in profile or ()],
    )
    duration = f"{len(predictions.of)} predictions in {time.perf_counter() - began:.2f} s."
    notes = "\n".join([*predictions.notes(), duration])
    return answer(as_json, predictions.content(), table_of(predictions.table()), notes)


def _numbers(text: str, option: str, verb: str, advice: str, *, of: str = "ranks") -> list[int]:
    """Whole numbers, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    problems = [
        Problem(option, f"{part!r} is not a number of {of}", advice)
        for part in parts
        if not re.fullmatch(r"[0-9]{1,7}", part)
    ]
    if problems:
        raise InputError(verb, problems)
    return [int(part) for part in parts]


@app.command()
def audit(
    source: Annotated[
        str,
        Argument(
            metavar="STUDY_OR_TABLE",
            help="A study, a table of anybody's results or nccl-tests output; - reads a paste.",
        ),
    ],
    column: ColumnOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what cannot be trusted in a study, or in a table of anybody's results."""
    columns = _columns(column, "audit")
    given: Any = lab.Study.load(source, quick=True) if quick else source
    if source == "-":
        if sys.stdin.isatty():
            typer.echo("Paste a table, then press Ctrl-D on a line of its own.", err=True)
        given = sys.stdin.buffer
    result = lab.audit(given, columns=columns)
    answer(as_json, result, str(result))
    if not result.trustworthy:
        grave = sum(finding.severity != "note" for finding in result.findings)
        raise LabError(f"{count(grave, 'finding')} to resolve before these numbers can be believed")


def _columns(pairs: Sequence[str] | None, verb: str) -> dict[str, str] | None:
    problems = [
        Problem("--column", f"{pair!r} is not NAME=COLUMN", "such as world_size=gpus")
        for pair in pairs or ()
        if "=" not in pair
    ]
    if problems:
        raise InputError(verb, problems)
    return dict(pair.split("=", 1) for pair in pairs or ()) or None


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
    views: list[View] = []
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
    solutions: Annotated[
        bool, Option("--solutions", help="With the solutions, for instructors.")
    ] = False,
) -> None:
    """Copy the course's notebooks, with their studies and tables."""
    copied = relative(*lab.copy_lessons(folder, solutions=solutions))
    answer(False, None, copied, "next: jupyter lab, in that folder")


@course.command()
def slides(
    folder: Annotated[Path, Argument(metavar="DIR", help="Where the slides are written.")],
    names: Annotated[
        list[str] | None, Argument(metavar="LESSON...", help="Such as 04-strong-scaling.")
    ] = None,
    copy: Annotated[
        Path | None,
        Option("--lessons", metavar="COPY", help="A copy of the lessons, with what it measured."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make slides from the lessons: a file for each, which needs no network."""
    from lab.course.release import LESSONS

    made = lab.lesson_slides(folder, lessons=copy or LESSONS, names=names or ())
    rows = [
        {"lesson": one.file.stem, "slides": one.slides, "results left out": one.left_out or None}
        | {"because": one.reason if one.left_out else None}
        for one in made
    ]
    next_step = "next: open one in a browser; Space and arrows turn the slides, f fills the screen"
    answer(as_json, made, table_of(rows), relative(folder), next_step)


@course.command()
def collect(
    sources: Annotated[
        list[str], Argument(metavar="FOLDER...", help="Where the STUDENT/LESSON folders are.")
    ],
    into: Annotated[
        Path, Option("--into", metavar="SUBMISSIONS", help="Where they are copied to.")
    ] = Path("submitted"),
    as_json: JsonOption = False,
) -> None:
    """Copy what students handed in to a folder of your own, for grading."""
    collected = lab.collect(sources, into=into)
    rows = [
        {"student": one.student, "lesson": one.lesson, "files": one.files}
        | {"MB": f"{one.bytes / 1e6:.1f}", "owner": one.owner, "newest": one.newest}
        | {"problem": one.problem}
        for one in collected
    ]
    answer(as_json, collected, table_of(rows), f"next: lab course grade {into}")
    if missing := [one for one in collected if not one.files]:
        names = ", ".join(dict.fromkeys(one.student for one in missing))
        raise LabError(f"not copied completely: {names}")


@course.command()
def grade(
    submissions: Annotated[
        Path, Argument(metavar="SUBMISSIONS", help="STUDENT/LESSON folders, as handed in.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="CSV", help="Where each point is explained.")
    ] = Path("grades.csv"),
    shared_records: Annotated[
        bool, Option("--shared-records", help="Students may hand in the same records.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Grade what students handed in, without running their notebooks."""
    grades = lab.grade(submissions, output=output, shared_records=shared_records)
    from lab.course.grade import totals

    answer(as_json, grades, table_of(totals(grades)), relative(output))


@course.command()
def results(
    submissions: Annotated[
        Path, Argument(metavar="SUBMISSIONS", help="STUDENT/LESSON folders, as handed in.")
    ],
    output: Annotated[
        Path, Option("--output", "-o", metavar="CSV", help="A row for each repeat of each student.")
    ] = Path("class.csv"),
    anonymous: Annotated[bool, Option("--anonymous", help="Numbers in place of names.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Put what students measured into one table, and show how far their machines differ."""
    collected = lab.class_results(submissions, output=output, anonymous=anonymous)
    from lab.course.class_results import spread

    rows = spread(collected)
    answer(as_json, rows, table_of(rows), relative(output))


@course.command()
def budget(
    folder: Annotated[
        Path | None,
        Argument(metavar="DIR", help="A copy of the lessons in which you have measured."),
    ] = None,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    minutes: Annotated[
        float | None, Option("--minutes", min=0.01, help="For a job whose time is not known yet.")
    ] = None,
    students: Annotated[
        str, Option("--students", metavar="N,...", help="Class sizes.")
    ] = "10,30,100",
    as_json: JsonOption = False,
) -> None:
    """Show how many hours the course's jobs take, by study and by class size."""
    sizes = _numbers(students, "--students", "course budget", "such as 10,30", of="students")
    from lab.course.budget import class_hours
    from lab.course.release import LESSONS

    budgets = lab.class_budget(
        cluster, folder=folder or LESSONS, quick=quick, minutes_per_job=minutes
    )
    rows = [
        {
            "study": one.study,
            "lessons": " ".join(name[:2] if name[:2].isdigit() else name for name in one.lessons),
            "one student": f"{one.hours}",
            "cannot run": one.left_out or None,
        }
        for one in budgets
    ]
    classes = class_hours(budgets, sizes)
    unknown = sum(one.hours.unknown for one in budgets)
    hint = [f"{count(unknown, 'job')} not counted: give --minutes per job"] if unknown else []
    content = {"studies": budgets, "classes": classes}
    answer(as_json, content, table_of(rows), "", table_of(classes), *hint)


@course.command()
def catalogue(
    path: Annotated[Path, Argument(metavar="PO", help="The catalogue, such as fr.po.")],
    as_json: JsonOption = False,
) -> None:
    """Write hints and verdicts for translation, or bring a translation of them up to date."""
    state = lab.update_catalogue(path)
    done = f"{state.translated} of {state.messages} messages are translated"
    unsure = f", {state.fuzzy} marked as fuzzy" if state.fuzzy else ""
    answer(as_json, state, f"{relative(path)}: {done}{unsure}")
    if state.faults:
        listed = "\n".join(f"  {one}" for one in state.faults)
        raise LabError(f"{count(len(state.faults), 'translation')} cannot be used\n{listed}")


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
    study: Annotated[
        str | None, Argument(metavar="[STUDY]", help="Measure only what its predictions need.")
    ] = None,
    cluster: ClusterOption = "local",
    quick: Annotated[bool, Option("--quick", help="Fewer sizes.")] = False,
    fresh: Annotated[bool, Option("--fresh", help="Measure again, even if done today.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure collectives, matrix products and memory of a cluster; fit alpha and beta."""
    needs: dict[str, Any] = {}
    if study:
        runs = lab.Study.load(study).runs
        needs["world_sizes"] = {1, *(run.processes for run in runs)}
        needs["strategies"] = {run.strategy for run in runs}
    calibration = lab.calibrate(cluster, **needs, quick=quick, fresh=fresh, progress=not as_json)
    from lab.analysis.tables import fits_table, throughput_table

    frames = [fits_table(calibration), throughput_table(calibration)]
    rows = [f.reset_index(drop=f.index.name is None).to_dict("records") for f in frames]
    answer(as_json, calibration, *map(table_of, rows))


@app.command()
def fetch(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Download and prepare the data of a study, for ranks that reach no network."""
    fetched = lab.fetch(lab.Study.load(study, quick=quick), cluster, progress=not as_json)
    rows = [{"data": one.data, "holds": one.holds, "sha256": one.sha256[:12]} for one in fetched]
    answer(as_json, fetched, table_of(rows))


@app.command()
def clean(
    study: StudyArgument,
    yes: Annotated[bool, Option("--yes", help="Remove what can be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the disk space of a study's results and what can be removed; no record ever is."""
    parts = lab.clean(lab.Study.load(study), remove=yes)
    rows = [
        {"what": part.what, "files": part.files, "MB": f"{part.bytes / 1e6:.1f}"}
        | {"comes back": part.again}
        for part in parts
    ]
    done = "all but the last was removed" if yes else "--yes removes all but the last"
    answer(as_json, parts, table_of(rows), done if len(parts) > 1 else "nothing can be removed")


@app.command()
def bench(
    what: Annotated[
        str,
        Argument(
            metavar="overhead|training|losses|predict|planner|public|driver|report",
            help="overhead: what measuring costs a step; "
            "training: the lab's step against those of other loops; "
            "losses: whether all strategies learn the same; "
            "predict: how wrong predictions for two ranks are; planner: how long predicting takes; "
            "public: how wrong predictions of published layouts are; "
            "driver: how long a study takes beside its jobs; "
            "report: what status, plan, audit and report of many runs cost.",
        ),
    ],
    tables: Annotated[
        list[str] | None,
        Argument(
            metavar="[STUDY_OR_TABLE]...",
            help="training: a study whose GPTs on one device are trained; "
            "public: tables of layouts instead of the lab's own.",
        ),
    ] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer rounds, settings and steps.")] = False,
    script: Annotated[
        str | None,
        Option(
            "--script", metavar="COMMAND", help="overhead: in a script, such as 'train.py --lr 1'."
        ),
    ] = None,
    ranks: Annotated[int, Option("--ranks", min=1, help="overhead: ranks of the script.")] = 1,
    nanogpt: Annotated[
        str | None, Option("--nanogpt", metavar="FILE", help="training: nanoGPT's model.py.")
    ] = None,
    every: Annotated[
        bool, Option("--all", help="predict: every strategy, quiet and with one core loaded.")
    ] = False,
    cluster: ClusterOption = "local",
    fresh: Annotated[bool, Option("--fresh", help="Predict and measure again.")] = False,
    fit: Annotated[int, Option("--fit", metavar="N", help="public: rows to fit.")] = 10,
    splits: Annotated[int, Option("--splits", metavar="N", help="public: random splits.")] = 30,
    runs: Annotated[
        int, Option("--runs", metavar="N", min=10, help="report: runs of the largest study.")
    ] = 3000,
    as_json: JsonOption = False,
) -> None:
    """Measure the lab itself."""
    progress = not as_json
    benchmarks = {
        "overhead": lambda: _overhead(
            lab.benchmarks.overhead(quick=quick)
            if script is None
            else lab.benchmarks.script_overhead(script, ranks=ranks, rounds=3 if quick else 7)
        ),
        "training": lambda: _training(
            lab.benchmarks.training(*(tables or ()), nanogpt=nanogpt, quick=quick)
        ),
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
        "public": lambda: _public(lab.benchmarks.public(tables or (), fit=fit, splits=splits)),
        "driver": lambda: _driver_costs(lab.benchmarks.driver_costs(quick=quick)),
        "report": lambda: _many_runs(runs),
    }
    if what not in benchmarks:
        raise InputError("bench", [Problem(what, "no such benchmark", nearest(what, benchmarks))])
    options = (
        (every, "--all", "predict"),
        (script, "--script", "overhead"),
        (nanogpt, "--nanogpt", "training"),
    )
    for given, option, owner in options:
        if given and what != owner:
            problem = Problem(option, f"is not an option of {what}", f"use it with {owner}")
            raise InputError("bench", [problem])
    places = {"public": len(tables or ()), "training": 1}
    if tables and len(tables) > places.get(what, 0):
        advice = "tables go with public" if what != "training" else "give one study"
        raise InputError("bench", [Problem(tables[-1], f"is not for {what}", advice)])
    content, views, failure = benchmarks[what]()
    answer(as_json, content, *views)
    if failure:
        raise LabError(failure)


Verdict = tuple[Any, list[View], str]  # content, views, and why it is not good enough


def _overhead(result: lab.benchmarks.Overhead) -> Verdict:
    limit, noise = lab.benchmarks.LIMIT, abs(result.control.median - 1)
    failure = f"measuring costs more than the limit of {limit}"
    if noise > limit - 1:
        failure += f", but two plain loops differ by {noise:.1%} too: try again on an idle machine"
    return result, [str(result)], "" if result.within_limit else failure


def _training(results: list[lab.benchmarks.Comparison]) -> Verdict:
    limit = lab.benchmarks.LIMIT
    slower = [f"{one.loop} ({one.run.label})" for one in results if one.slower]
    failure = f"slower than the limit of {limit} against {', '.join(slower)}" if slower else ""
    content = [dataclasses.asdict(one) | {"slower": one.slower} for one in results]
    return content, [table_of([one.row() for one in results])], failure


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
    return result.content(), [table_of(result.table()), *result.notes()], ""


def _driver_costs(costs: list[lab.benchmarks.DriverCost]) -> Verdict:
    failure = "" if all(one.within_limits for one in costs) else "the driver is beyond its limits"
    content = [dataclasses.asdict(one) | {"ratio": one.ratio} for one in costs]
    return content, [table_of([one.row() for one in costs])], failure


def _many_runs(runs: int) -> Verdict:
    from lab.report.bench import LIMITS, costs, shapes

    total, progress = len(list(shapes(runs))), Console(stderr=True)
    measured = list(track(costs(runs), "studies", total=total, console=progress, transient=True))
    rows = [cost.row() for cost in measured]
    beyond = [cost for cost in measured if not cost.within_limits]
    failure = f"beyond the limits ({LIMITS}): {len(beyond)} of {total} studies" if beyond else ""
    return rows, [table_of(rows)], failure
