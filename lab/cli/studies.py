"""Verbs that work on a study: run, watch, cancel, report, generate."""

from __future__ import annotations

from typing import Annotated

import typer

import lab
from lab.cli.command import ClusterOption, JsonOption, QuickOption, StudyArgument, answer, app, shown, table_of
from lab.errors import LabError
from lab.prediction_sections import predictions_of


@app.command()
def run(
    study: StudyArgument,
    cluster: ClusterOption = "local",
    quick: QuickOption = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again what is measured; old records are set aside.")] = False,
    snapshot: Annotated[bool, typer.Option("--snapshot", help="Jobs run a copy of today's code, however it is edited.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Return at once; `lab status` tells how far it is.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure what is missing of a study, then make its notebooks and its report."""
    loaded = lab.Study.load(study, quick=quick)
    if detach:
        pid = lab.detach(loaded, cluster, fresh=fresh, snapshot=snapshot)
        answer(as_json, {"pid": pid}, f"driver {pid} works on {loaded.name}; see `lab status {study}`")
        return
    jobs = lab.launch(loaded, cluster, fresh=fresh, snapshot=snapshot)
    records = jobs.wait(progress=not as_json)
    made = lab.report(loaded)
    failures = [record for record in records if not record.completed]
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
        raise LabError("\n".join(f"{record.task.label}: {record.status}: {_cause(record)}" for record in failures))


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
    answer(as_json, {"ended": ended}, f"{ended} job{'s' * (ended != 1)} ended; `lab run` goes on from what is measured")


@app.command()
def report(study: StudyArgument, quick: QuickOption = False, as_json: JsonOption = False) -> None:
    """Make the report again from the records; no job is started."""
    made = lab.report(lab.Study.load(study, quick=quick))
    answer(as_json, {"html": str(made.html), "pdf": str(made.pdf)}, f"{shown(made.html)}\n{shown(made.pdf)}")


@app.command()
def generate(
    study: StudyArgument,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of a run that kept its model; else the first that did.")] = "",
    prompt: Annotated[list[str] | None, typer.Option("--prompt", help="What the text begins with; may be repeated.")] = None,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=1, help="Tokens that are written.")] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token, more draws.")] = 0.0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Draw from so many of the likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Draw from the fewest that hold this probability.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of what is drawn.")] = 0,
    quick: QuickOption = False,
    as_json: JsonOption = False,
) -> None:
    """Let the trained model of a run write on from a prompt."""
    prompts = prompt or ["def "]
    loaded = lab.Study.load(study, quick=quick)
    texts = lab.generate(
        loaded, run, prompts=prompts, new_tokens=new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed
    )
    pairs = list(zip(prompts, texts, strict=True))
    answer(as_json, [{"prompt": given, "text": text} for given, text in pairs], "\n\n".join(map("".join, pairs)))


def _cause(record: lab.Record) -> str:
    if record.error is None:
        return "no cause was recorded"
    rank = "" if record.error.rank is None else f" on rank {record.error.rank}"
    return f"{record.error.type}{rank}: {record.error.message}"
