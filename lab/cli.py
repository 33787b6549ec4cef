"""The `lab` command: each verb calls one function of the public API and prints its answer."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Argument, Option

import lab
from lab.bench import bench
from lab.config.variables import doubtful_variables
from lab.course.commands import course
from lab.errors import INTERRUPTED, InputError, LabError, combined, nearest
from lab.files import source_date
from lab.formatting import brief, count, printable
from lab.terminal import (
    AssumeOption,
    ClusterOption,
    JsonOption,
    QuickOption,
    TableOption,
    View,
    answer,
    assumed,
    console,
    numbers,
    pairs,
    refuse,
    relative,
    table_of,
)

if TYPE_CHECKING:
    from lab.config.study import Task

# The error for a wrong command line, from the click bundled with typer or the installed one.
UsageError: Any = typer.BadParameter.__mro__[1]
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 120},
    help="Scaling Lab: how does training scale here, and why?",
)

StudyArgument = Annotated[
    str, Argument(metavar="STUDY", help="A folder under reports/, by name or by path.")
]
FreshOption = Annotated[bool, Option("--fresh", help="Archive records and measure again.")]
YesOption = Annotated[bool, Option("--yes", help="Run even if it exceeds the cluster's budget.")]
ColumnOption = Annotated[
    list[str] | None,
    Option(metavar="NAME=COLUMN", help="Read COLUMN of the table as quantity NAME."),
]
MachineOption = Annotated[
    str | None,
    Option(
        "--machine",
        metavar="NAME",
        help="Predict for this described machine, such as h100x8:nvlink4:infiniband-ndr.",
    ),
]


def main() -> None:
    """Run the command; exit status 0 done, 1 failed, 2 unusable input, 130 interrupted."""
    message, status = "", 1
    try:
        status = _command()(prog_name="lab", standalone_mode=False) or 0
    except LabError as error:
        message, status = str(error), error.exit_status
    except UsageError as error:
        status = 2
        if error.ctx and error.message == error.ctx.get_help():  # no verb was given
            sys.stderr.write(f"{error.message}\n")
        else:
            what = error.format_message().rstrip(".")
            message = f"{what}{'.' * (what[-1:] != '?')} {_advice(error)}"
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        _discard_output()
    except Exception as error:  # noqa: BLE001 the traceback is kept for whoever fixes it
        if _was_interrupted(error):
            status = INTERRUPTED
        elif limit := _limit(error):
            message = limit
        elif isinstance(error, OSError) and error.errno:  # libraries have errors of this kind too
            # Of what has no name: only the current folder can be missing.
            unnamed = "the current folder" if isinstance(error, FileNotFoundError) else "output"
            message = f"{error.filename or unnamed}: {error.strerror or error}"
            if error.errno == errno.ENOSPC and not error.filename:
                _discard_output()
        else:
            fault = f"an error in the lab itself: {type(error).__name__}: {error}"
            message = f"{fault}\nlab: traceback in {_write_traceback()}"
    if status == INTERRUPTED:  # which typer also returns for it
        message = message or "interrupted; the same command resumes from there"
    if message:
        text = printable(f"lab: {message}")
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
    sys.exit(status if isinstance(status, int) else 0)


def _discard_output() -> None:
    """Drop output that nobody can get, as Python would complain at exit that it is left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _limit(error: Exception) -> str:
    """Which limit of the shell or container an error met; empty for another error."""
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EAGAIN or "can't start new thread" in str(error):
        return "no more processes or threads can be started: raise `ulimit -u` or end others"
    if code in {errno.EMFILE, errno.ENFILE}:
        return "no more files can be opened: raise `ulimit -n`"
    return ""


@cache
def _command() -> Any:
    """All verbs with their options, which take longer to put together than most answers."""
    return typer.main.get_command(app)


def _advice(error: Any) -> str:
    if error.ctx and error.ctx.info_name == "measure":
        return "Options of the script follow `--`: lab measure [OPTIONS] -- SCRIPT ARGS."
    return f"See `{error.ctx.command_path if error.ctx else 'lab'} --help`."


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error, as where Python 3.11 was constructing a class.

    pydantic has it in the message only, if it was constructing a validator.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt) or "KeyboardInterrupt" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _write_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix="lab-traceback-", suffix=".txt", text=True)
    with os.fdopen(handle, "w", errors="backslashreplace") as stream:
        stream.write(traceback.format_exc())
    return Path(name)


def _show_version(version: bool) -> None:
    if version:
        sys.stdout.write(f"scaling-lab {lab.__version__}\n")
        raise typer.Exit


@app.callback()
def _lab(
    version: Annotated[
        bool, Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    source_date()  # a wrong one would fail within numpy, or in the report, which is made last
    for problem in doubtful_variables():
        sys.stderr.write(printable(f"lab: {problem}") + "\n")


@app.command()
def init(
    folder: Annotated[str, Argument(metavar="FOLDER", help="A folder that holds no study yet.")],
    like: Annotated[
        str | None,
        Option(metavar="STUDY", help="Copy an example with its code, such as own-model."),
    ] = None,
) -> None:
    """Write a commented study to begin with, or copy an example."""
    files = relative(*lab.new_study(folder, like=like))
    study = shlex.quote(folder)
    answer(False, None, files, f"next: lab plan {study}, then lab run {study}")


@app.command()
def run(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    fresh: FreshOption = False,
    repeat_disturbed: Annotated[
        bool,
        Option("--repeat-disturbed", help="Measure noisy repeats again; the quieter one counts."),
    ] = False,
    snapshot: Annotated[
        bool,
        Option("--snapshot", help="Run a copy of the code, so that later edits change nothing."),
    ] = False,
    detach: Annotated[
        bool, Option("--detach", help="Return at once; `lab status` shows progress.")
    ] = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what a study lacks, then make its notebooks and report."""
    loaded = lab.Study.load(study, quick=quick)
    options: dict[str, Any] = {"repeat_disturbed": repeat_disturbed, "snapshot": snapshot}
    options |= {"fresh": fresh, "yes": yes}
    if detach:
        pid = lab.detach(loaded, cluster, **options)
        text = f"driver {pid} is working on {loaded.name}; see `{loaded.command('status')}`"
        return answer(as_json, {"pid": pid}, text)
    return _finish(loaded, lab.launch(loaded, cluster, **options), as_json=as_json)


@app.command()
def measure(
    command: Annotated[
        list[str],
        Argument(
            metavar="-- SCRIPT ARGS", help="A Python script, or -m MODULE, and its arguments."
        ),
    ],
    ranks: Annotated[str, Option(metavar="N,...", help="Numbers of ranks.")] = "1,2",
    steps: Annotated[int, Option(help="Optimizer steps after which the script is ended.")] = 60,
    warmup_steps: Annotated[
        int, Option(help="Steps at the start that no measurement includes.")
    ] = 10,
    repeats: Annotated[int, Option(help="Separate jobs for each number of ranks.")] = 3,
    scaling: Annotated[
        str,
        Option(
            metavar="strong|weak|none",
            help="What the script keeps fixed: the global batch (strong) or that of a rank (weak).",
        ),
    ] = "none",
    global_batch_size: Annotated[
        int | None, Option(help="Samples in a step, over all ranks, if fixed.")
    ] = None,
    micro_batch_size: Annotated[
        int | None, Option(help="Samples in a step on one rank, over all its passes, if fixed.")
    ] = None,
    launcher: Annotated[
        str,
        Option(
            metavar="torchrun|python",
            help="Whose environment variables the script gets; python sets none and has one rank.",
        ),
    ] = "torchrun",
    name: Annotated[
        str | None,
        Option(metavar="STUDY", help="The study's folder; by default the script's name."),
    ] = None,
    cluster: ClusterOption = "local",
    fresh: FreshOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure any training script on several ranks, and report on it."""
    from lab.config.new_study import restored_if_refused, script_folder

    with restored_if_refused(script_folder(command, name)):
        study = lab.script_study(
            command,
            ranks=numbers(ranks, "--ranks", "measure", "such as 1,2,4"),
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
    if lab.Study.load(loaded.folder, quick=loaded.quick).runs != loaded.runs:
        raise LabError(
            f"{loaded.name} was changed while it was measured; its records are kept, and the same "
            "command measures what is missing now"
        )
    quiet = Console(quiet=True) if as_json else console  # a terminal alone shows it
    failures = [record for record in records if not record.completed]
    recorded = {record.task for record in records}
    ended = [(record.task, record.end) for record in failures]
    ended += [(task, "no record") for task in jobs.tasks if task not in recorded]
    causes = list(_by_cause(ended))
    done = f"{len(records) - len(failures)} of {count(len(jobs.tasks), 'run')} completed"
    try:
        with quiet.status("making the notebooks and the report"):
            report = lab.report(loaded, runs=True)
    except Exception as error:
        if not _was_interrupted(error):
            again = loaded.command("report")
            sys.stderr.write(f"lab: {done}; all is kept, and `{again}` makes the report\n")
            sys.stderr.writelines(f"lab: {cause}\n" for cause in causes)
        raise
    content = {
        "answer": report.answer,
        "predictions": report.predictions,
        "noise": report.noise,
        "records": len(records),
        "failed": [record.run_id for record in failures],
        "html": report.html,
        "pdf": report.pdf,
    }
    lines = [done]
    lines += [report.predictions] if loaded.kind == "training" else []
    content["kept"] = others = other_commands(loaded)
    lines += [report.answer, relative(report.html, report.pdf), *others]
    lines += _next_steps(loaded, records)
    answer(as_json, content, "\n".join(lines))
    if causes:
        raise LabError("\n".join(causes))


def _next_steps(study: lab.Study, records: Sequence[lab.Record]) -> list[str]:
    """What to try after a study, as commands."""
    from lab.perfmodel.calibration import find_calibration

    if not any(record.completed for record in records):
        return [f"next: {study.command('status')}  # which runs failed, and why"]
    steps = {study.command("audit"): "what in these numbers cannot be trusted"}
    places = [record.environment for record in records if record.environment]
    clusters = {place.profile for place in places}
    predictable = study.kind == "training" and not any(run.script for run in study.runs)
    if predictable and places and not places[0].replay:
        if any(find_calibration(name) is None for name in clusters):
            calibrate = study.command("calibrate", clusters)
            steps[calibrate] = "the links, from which more ranks are predicted"
        else:
            beyond = 4 * max(run.world_size for run in study.runs)
            command = study.command("predict", clusters)
            steps[f"{command} --world-size {beyond}"] = "what more ranks would bring"
    if study.quick:
        steps[study.command("run", clusters).removesuffix(" --quick")] = "the whole study"
    else:
        steps["lab init my-study"] = "a study of your own"
    width = max(map(len, steps))
    return [f"next: {command:{width}}  # {why}" for command, why in steps.items()]


def _by_cause(ended: Sequence[tuple[Task, str]]) -> Iterator[str]:
    """Each cause once, with the first task that it ended and the number of others."""
    from lab.records.table import grouped

    for cause, (first, *others) in grouped((cause, task) for task, cause in ended).items():
        more = f" and {count(len(others), 'other')}" if others else ""
        yield f"{first.label}{more}: {cause}"


@app.command()
def status(
    study: StudyArgument,
    watch: Annotated[
        bool, Option("--watch", help="Keep updating until all runs have ended or no driver works.")
    ] = False,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of each run of a study, from any terminal."""
    from lab.launch.status import advice
    from lab.launch.status import watch as watched

    loaded = lab.Study.load(study, quick=quick)
    states = watched(loaded) if watch else lab.status(loaded)
    rows = [
        {
            "run": state.task.run.id,
            "configuration": state.task.run.label,
            "repeat": state.task.repeat,
            "state": state.state,
            "step": f"{state.step}/{state.steps} {state.phase}" if state.state == "running" else "",
            "seconds": None if state.seconds is None else round(state.seconds, 1),
            "job": state.job_id,
            "reason": brief(state.reason),
        }
        for state in states
    ]
    # The record and --json have all of a cause.
    content = [
        row | {"reason": state.reason, "advice": state.advice}
        for row, state in zip(rows, states, strict=True)
    ]
    answer(as_json, content, table_of(rows), *advice(loaded, states))


@app.command()
def cancel(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """End the jobs of a study, from any terminal; records are kept."""
    from lab.launch.status import to_go_on

    loaded = lab.Study.load(study, quick=quick)
    ended = lab.cancel(loaded)
    text = f"{count(ended, 'job')} ended; {to_go_on(loaded)}"
    answer(as_json, {"ended": ended}, text if ended else "no job of this study waits or runs")


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
        bool, Option("--all", help="Index all studies, with the reports of those with records.")
    ] = False,
    artifacts: Annotated[
        bool, Option("--artifacts", help="Also write text, figures and tables as separate files.")
    ] = False,
    keep: Annotated[
        bool,
        Option(
            "--keep",
            help="Write small files for a repository to STUDY/kept/; with --all, rewrite all.",
        ),
    ] = False,
    title: Annotated[str | None, Option(help="Title of a table's report.")] = None,
    scaling: Annotated[
        str | None,
        Option(metavar="strong|weak|auto", help="Scaling of a table that does not state it."),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(metavar="world_size=N", help="Baseline of a table; by default its fewest ranks."),
    ] = None,
    gpu_hours: Annotated[
        float | None, Option(metavar="H", help="GPU-hours that a proposal asks for.")
    ] = None,
    node_hours: Annotated[
        float | None, Option(metavar="H", help="Node-hours, for a table that counts nodes.")
    ] = None,
    core_hours: Annotated[
        float | None, Option(metavar="H", help="Core-hours, for a table that counts cores.")
    ] = None,
    column: ColumnOption = None,
    table: TableOption = None,
    out: Annotated[
        Path | None,
        Option(metavar="DIR", help="Folder of a table's report; by default beside the table."),
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the report of a study or of a table; no job is started."""
    from lab.analysis.audit import is_table

    of_tables: dict[str, object] = {"--title": title, "--scaling": scaling, "--out": out}
    of_tables |= {"--baseline": baseline, "--column": column, "--table": table}
    hours = {"gpu_hours": gpu_hours, "node_hours": node_hours, "core_hours": core_hours}
    of_tables |= {f"--{name.replace('_', '-')}": number for name, number in hours.items()}
    if every:
        of_one = of_tables | {"--artifacts": artifacts, "--quick": quick}
        refuse("report", of_one, "is only for one report", "leave out this option or --all")
        return _report_all(Path(source or "reports"), keep=keep, as_json=as_json)
    if not source:
        raise InputError.of("report", "STUDY", "missing", "name a study, or give --all")
    if is_table(source):
        of_studies = {"--keep": keep, "--quick": quick}
        refuse("report", of_studies, "is only for studies", "leave it out")
        result = lab.report_table(
            source,
            columns=_columns(column, "report"),
            scaling=_scaling(scaling),
            baseline=_baseline(baseline),
            title=title,
            **hours,
            out=out,
            artifacts=artifacts,
            number=table,
        )
        if result.table and table is None:
            typer.echo(f"Read: {result.table}; --table N reads another.", err=True)
    else:
        study = lab.Study.load(source, quick=quick)
        advice = "leave it out; a study has title, scaling and baseline in study.yaml"
        refuse("report", of_tables, "is only for tables", advice)
        if keep:
            from lab.report.gallery import keep as keep_report

            refuse("report", {"--artifacts": artifacts}, "is not kept", "leave it out or --keep")
            files = keep_report(study)
            return answer(as_json, {"files": files}, relative(*files))
        # The report of one form replaces that of the other.
        _require_completed(study)
        result = lab.report(study, artifacts=artifacts)
    content = {"answer": result.answer, "html": result.html, "pdf": result.pdf}
    content |= {"artifacts": result.artifacts}
    return answer(as_json, content, relative(result.html, result.pdf, *result.artifacts))


def _report_all(studies: Path, *, keep: bool, as_json: bool) -> None:
    """Make all reports; an error that names the studies without one comes last."""
    from lab.report.gallery import gallery, remake_kept

    content: dict[str, Any]
    if keep:
        files, errors = remake_kept(studies)
        content = {"files": files}
    else:
        index, readme, errors = gallery(studies)
        files, content = [index, readme], {"index": index, "readme": readme}
    content["errors"] = list(map(str, errors))
    answer(as_json, content, relative(*files))
    if errors:
        raise combined(errors)


def _scaling(text: str | None) -> Any:
    choices = ("auto", "strong", "weak")
    if text is not None and text not in choices:
        raise InputError.of(
            "report", "--scaling", f"unknown scaling {text!r}", nearest(text, choices)
        )
    return text or "auto"


def _baseline(text: str | None) -> int | None:
    if text is None:
        return None
    size = text.removeprefix("world_size=")
    if not re.fullmatch("0*[1-9][0-9]{0,6}", size):
        raise InputError.of(
            "report", "--baseline", f"{text!r} is not world_size=N", "such as world_size=4"
        )
    return int(size)


@app.command()
def generate(
    study: StudyArgument,
    run: Annotated[
        str,
        Argument(
            metavar="RUN", help="Id of a run that kept its model; by default the first that did."
        ),
    ] = "",
    prompt: Annotated[list[str] | None, Option(help="Text to continue; may be repeated.")] = None,
    new_tokens: Annotated[int, Option(min=1, help="Tokens to write.")] = 64,
    temperature: Annotated[
        float, Option(help="0 takes the likeliest token; above 0, samples.")
    ] = 0.0,
    top_k: Annotated[
        int | None, Option(help="Sample from this many of the likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, Option(help="Sample from the likeliest that add up to this probability.")
    ] = None,
    seed: Annotated[int, Option(min=0, max=2**63 - 1, help="Seed of the sampling.")] = 0,
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
    both = list(zip(prompts, texts, strict=True))
    content = [{"prompt": prompt, "text": text} for prompt, text in both]
    answer(as_json, content, "\n\n".join(map("".join, both)))


@app.command()
def plan(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    sbatch: Annotated[
        Path | None, Option(metavar="DIR", help="Write the study's job scripts there instead.")
    ] = None,
    best: Annotated[
        bool, Option("--best", help="Search for the fastest plan that fits into memory.")
    ] = False,
    machine: MachineOption = None,
    world_size: Annotated[int | None, Option(min=1, help="Ranks to plan for, with --best.")] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what the runs of a study take, and what cannot run here."""
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
    of_search = {"--machine": machine, "--world-size": world_size}
    refuse("plan", of_search, "is only for --best", "add --best, or use `lab predict`")
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
        str | None, Option(metavar="N,...", help="Ranks to predict for, even beyond the machine.")
    ] = None,
    machine: MachineOption = None,
    profile: Annotated[
        list[str] | None,
        Option(metavar="STUDY", help="Also predict from this study's runs on one rank."),
    ] = None,
    explain: Annotated[
        bool, Option("--explain", help="STUDY is a table of layouts; explain each measured step.")
    ] = False,
    assume: AssumeOption = None,
    table: TableOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Predict runs, also on more ranks, and score predictions."""
    if explain:
        from lab.analysis.audit import is_table

        if not is_table(study):
            advice = (
                "name the file of one, or leave out --explain: studies are predicted without it"
            )
            raise InputError.of("predict", study, "is not a table of layouts", advice)
        of_studies = {
            "--world-size": world_size,
            "--machine": machine,
            "--profile": profile,
            "--cluster": cluster != "local",
            "--quick": quick,
        }
        refuse("predict", of_studies, "is only for studies", "leave it out")
        assumptions = assumed(assume, "predict")
        explanations = lab.explain_layouts(study, assume=assumptions, number=table)
        notes = "\n".join(f"- {note}" for note in explanations.notes)
        return answer(
            as_json, explanations, table_of([one.table_row() for one in explanations]), notes
        )
    of_tables = {"--assume": assume, "--table": table}
    refuse("predict", of_tables, "is only for tables of layouts", "use it with --explain")
    if Path(study).is_file() and Path(study).suffix not in {".yaml", ".yml"}:
        raise InputError.of(
            "predict", study, "is a file, not a study", "for a table of layouts add --explain"
        )
    began = time.perf_counter()
    predictions = lab.predict(
        lab.Study.load(study, quick=quick),
        cluster,
        world_sizes=None
        if world_size is None
        else numbers(world_size, "--world-size", "predict", "such as 8,64,512"),
        machine=machine,
        profiles=[lab.Study.load(other) for other in profile or ()],
    )
    number = count(sum(not one.forecast.missing for one in predictions.of), "prediction")
    duration = f"{number} in {time.perf_counter() - began:.2f} s."
    notes = "\n".join([*predictions.notes(), duration])
    return answer(as_json, predictions.content(), table_of(predictions.table()), notes)


@app.command()
def audit(
    source: Annotated[
        str,
        Argument(
            metavar="STUDY_OR_TABLE",
            help="A study, anybody's table of results, nccl-tests or OSU output; - reads a paste.",
        ),
    ],
    column: ColumnOption = None,
    table: TableOption = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show what cannot be trusted in a study or in anybody's table."""
    from lab.analysis.audit import is_table

    columns = _columns(column, "audit")
    subject: Any = source
    if source == "-" or is_table(source):
        refuse("audit", {"--quick": quick}, "is only for studies", "leave it out")
    else:
        of_tables = {"--table": table, "--column": column}
        refuse("audit", of_tables, "is only for tables", "leave it out")
        subject = study = lab.Study.load(source, quick=quick)
        from lab.records.store import kept_form

        advice = kept_form(study) or f"`{study.command('run')}` measures it"
        _require_completed(study, advice)
    if source == "-":
        if sys.stdin.isatty():
            typer.echo("Paste a table, then press Ctrl-D on an empty line.", err=True)
        subject = sys.stdin.buffer
    result = lab.audit(subject, columns=columns, number=table)
    answer(as_json, result, str(result))
    if not result.trustworthy:
        grave = sum(finding.severity != "note" for finding in result.findings)
        raise LabError(f"{count(grave, 'finding')} to resolve before these numbers can be believed")


def _require_completed(study: lab.Study, otherwise: str = "") -> None:
    """Raise InputError if only the study's other form is measured; if none is, with `otherwise`."""
    from lab.records.store import other_form

    measured = any(record.completed for record in lab.load_records(study))
    if not measured and (advice := other_form(study) or otherwise):
        raise InputError.of(study.name, "STUDY", "holds no completed record", advice)


def _columns(texts: Sequence[str] | None, verb: str) -> dict[str, str] | None:
    form, example = "NAME=COLUMN", "world_size=gpus"
    return pairs(texts, "--column", verb, form=form, example=example) or None


@app.command()
def compare(
    studies: Annotated[
        list[str], Argument(metavar="STUDY", help="Folders of the same study, one per machine.")
    ],
    out: Annotated[
        Path | None, Option(help="Folder of the comparison; by default out/ of the first study.")
    ] = None,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare the same study on several machines, in HTML and PDF."""
    from lab.report.build import report_comparison

    comparison = lab.compare(studies, quick=quick)
    page = report_comparison(comparison, out or next(iter(comparison.studies.values())).out)
    frames = dict(comparison.tables())
    content = {caption: frame.to_dict() for caption, frame in frames.items()}
    views: list[View] = []
    for caption, frame in frames.items():
        rows = frame.reset_index(names="").to_dict("records")
        views += [Text(caption, style="bold"), table_of(rows)]
    paths = {"html": page.html, "pdf": page.pdf}
    answer(as_json, content | paths, *views, relative(page.html, page.pdf))


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Show what this machine has and lacks, and how to get it."""
    checks = lab.doctor()
    rows = [
        {
            "": "ok" if check.present else "MISSING" if check.needed else "-",
            "what": check.name,
            "found": check.found,
            "to get it": "" if check.present else check.remedy,
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
        str | None, Argument(metavar="STUDY", help="Measure what its predictions need here.")
    ] = None,
    cluster: ClusterOption = "local",
    quick: Annotated[bool, Option("--quick", help="Measure fewer sizes.")] = False,
    fresh: Annotated[
        bool, Option("--fresh", help="Measure again, even if measured today.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure links, products and memory of a cluster, to predict by."""
    needs: dict[str, Any] = {}
    if study:
        runs, capacity = lab.Study.load(study).runs, lab.Cluster.of(cluster).capacity
        needs["world_sizes"] = {1, *(run.processes for run in runs if run.processes <= capacity)}
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
    """Download and prepare a study's data, for ranks without network."""
    fetched = lab.fetch(lab.Study.load(study, quick=quick), cluster, progress=not as_json)
    rows = [{"data": one.data, "holds": one.holds, "sha256": one.sha256[:12]} for one in fetched]
    answer(as_json, fetched, table_of(rows))


@app.command()
def clean(
    study: StudyArgument,
    yes: Annotated[bool, Option("--yes", help="Remove what can be removed.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show a study's disk space; --yes removes what can be made again."""
    parts = lab.clean(lab.Study.load(study), remove=yes)
    rows = [
        {"what": part.what, "files": part.files, "MB": f"{part.bytes / 1e6:.1f}"}
        | {"comes back": part.again}
        for part in parts
    ]
    done = "all but the last row was removed" if yes else "--yes removes all but the last row"
    answer(as_json, parts, table_of(rows), done if len(parts) > 1 else "nothing can be removed")


app.add_typer(bench, name="bench")
app.add_typer(course, name="course")
