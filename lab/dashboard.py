"""The interactive bench: choose a configuration, see what it costs, measure it, see it beside the earlier ones."""

from __future__ import annotations

import base64
import html
import threading
import time
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from lab import workloads
from lab.analysis.costs import model_cost
from lab.bench import Bench, results
from lab.cluster import Cluster
from lab.errors import LabError, Problem
from lab.inputs import problems_of
from lab.jobs.states import UNDER_WAY, TaskState, states
from lab.launch import Jobs, launch
from lab.page import Figure, Prose, Table
from lab.plan import plan, state_bytes
from lab.progress import clock
from lab.records import Store
from lab.study import ROOT, Run, Strategy, Study

POLL_S = 0.3
# What the form starts with, from the quickstart's smallest form: a few seconds of training on one core.
START = {"world_size": 1, "global_batch_size": 8, "grad_accum": 1, "steps": 12, "warmup_steps": 4}
NAMES = {
    "model": ("Model", "a preset"),
    "data": ("Data set", "what it is trained on"),
    "strategy": ("Strategy", "how the ranks share the work"),
    "precision": ("Precision", "number format of the forward and backward pass"),
    "world_size": ("World size", "ranks, of as many as the cluster can run at once"),
    "global_batch_size": ("Global batch size", "samples of one optimizer step, over all ranks"),
    "grad_accum": ("Gradient accumulation", "micro-batches of a rank for one optimizer step"),
    "steps": ("Steps", "optimizer steps in all"),
    "warmup_steps": ("Warm-up steps", "the first steps, left out of every measure"),
    "cluster": ("Cluster", "a profile of slurm/"),
}
TRAINING = ("warm-up", "measuring")

# What this process drives, by the folder of its task: a dashboard that is shown again can still cancel it.
_driven: dict[Path, Jobs] = {}


def dashboard(*, folder: str | Path | None = None) -> Dashboard:
    """The bench as widgets; what it measures is kept as studies below `folder`, by default `reports/bench`."""
    here = Path("reports") if Path("reports").is_dir() else ROOT / "reports"
    return Dashboard(Bench(Path(folder) if folder is not None else here / "bench"))


class Dashboard:
    """A form, Run and Cancel, progress and all results; `fields` are the form's controls by field of Run, and the cluster.

    A thread watches the run, so that other cells can be executed meanwhile.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.fields = _fields()
        self._place_widgets()
        self._jobs: Jobs | None = None
        self._going = self._cancelled = False
        for field in self.fields.values():
            field.observe(lambda change: self._judge(), "value")
        self.run_button.on_click(lambda button: self._run())
        self.cancel_button.on_click(lambda button: self._cancel())
        self._judge()
        self._say("Nothing is running.")
        self._show_results()
        self._attach()

    def _place_widgets(self) -> None:
        import ipywidgets as widgets

        row = {"flex_flow": "row wrap", "align_items": "center"}
        # Heights are fixed: a message that comes or goes moves nothing.
        self.verdict = widgets.HTML(layout={"height": "5.6em", "overflow": "auto"})
        self.run_button = widgets.Button(description="Run", button_style="primary", tooltip="measure this configuration")
        self.cancel_button = widgets.Button(description="Cancel", disabled=True, tooltip="end the run and keep nothing of it")
        self.bar = widgets.IntProgress(layout={"width": "12em"})
        self.status = widgets.HTML(layout={"flex": "1 1 22em", "height": "3.2em", "overflow": "auto"})
        self.results = widgets.Output()
        form = widgets.Box([*self.fields.values()], layout=row)
        controls = widgets.Box([self.run_button, self.cancel_button, self.bar, self.status], layout=row)
        self.view = widgets.VBox([form, self.verdict, controls, self.results])

    def _repr_mimebundle_(self, **how: Any) -> Any:
        return self.view._repr_mimebundle_(**how)

    def asked(self) -> Run:
        """The configuration in the form; raises pydantic's ValidationError where it is none."""
        return Run.model_validate({name: field.value for name, field in self.fields.items() if name != "cluster"})

    def _cluster(self) -> Cluster:
        return Cluster.load(self.fields["cluster"].value or "local")

    def _judge(self) -> None:
        """Say what is wrong with the configuration, or what it costs."""
        try:
            cluster = self._cluster()
            self.fields["world_size"].description = f"{NAMES['world_size'][0]} (of {cluster.capacity})"
            run = self.asked()
            study = self.bench.study(run, cluster.name)
            (row,) = plan(study, cluster)
            obstacle = row["cannot run"]
        except ValidationError as error:
            problems = [problem for field, problem in problems_of(error, Run, workloads.TAGS) if field != "micro_batch_size"]
            obstacle = "; ".join(map(_in_words, problems))
        except LabError as error:
            obstacle = str(error)
        text = f"<b>Cannot run:</b> {html.escape(obstacle)}" if obstacle else f"{_cost(run)}<br>{_history(study)}"
        self.verdict.value = _message(text)
        self.run_button.disabled = bool(obstacle) or self._going

    def _run(self) -> None:
        if self._going:
            return
        try:
            cluster = self._cluster()
            study = self.bench.study(self.asked(), cluster.name)
            self.bench.keep(study)
            if Store(study.out).completed(study.task()):
                self._finish(study, "Measured before, and not again")
            else:
                self._follow(study, launch(study, cluster))
        except (LabError, OSError, ValidationError) as error:
            self._say(f"Not started: {error}")

    def _attach(self) -> None:
        """Follow a run that still goes: this process's own, one that lost its driver, or another program's."""
        try:
            running = [(kept, state) for kept in self.bench.studies() for state in states(kept) if state.state in UNDER_WAY]
            for kept, state in running[:1]:
                cluster = kept.folder.parent.name
                study = self.bench.study(state.task.run, cluster)
                jobs = _driven.get(Store(study.out).folder(state.task))
                if jobs is None or jobs.done:
                    jobs = None if self.bench.is_driven(study) else launch(study, cluster)
                self._follow(study, jobs)
        except (LabError, OSError) as error:
            self._say(f"A run that still goes cannot be followed: {error}")

    def _follow(self, study: Study, jobs: Jobs | None) -> None:
        """Show a run from now on; `jobs` is None where another program drives it."""
        self._jobs, self._going, self._cancelled = jobs, True, False
        if jobs is not None:
            _driven[Store(study.out).folder(study.task())] = jobs
        self.run_button.disabled, self.cancel_button.disabled = True, jobs is None
        threading.Thread(target=self._watch, args=(study, jobs), name="bench", daemon=True).start()

    def _watch(self, study: Study, jobs: Jobs | None) -> None:
        pace = Pace()
        try:
            (state,) = states(study)
            while not jobs.done if jobs else state.state in UNDER_WAY:
                self._show_progress(state, pace)
                time.sleep(POLL_S)
                (state,) = states(study)
            if jobs:
                jobs.wait(progress=False)
            self._finish(study)
        except Exception as error:  # noqa: BLE001 nobody else would tell it
            kind = "" if isinstance(error, LabError) else f"{type(error).__name__}: "
            self._say(f"{study.runs[0].label}: {kind}{error}")
        finally:
            self._going, self.cancel_button.disabled = False, True
            self._judge()

    def _show_progress(self, state: TaskState, pace: Pace) -> None:
        if self._cancelled:
            return
        run, training = state.task.run, state.phase in TRAINING
        self.bar.max, self.bar.value = run.steps, state.step if training else run.steps * (state.phase == "evaluating")
        left = pace.left(state.step, run.steps, now=time.monotonic()) if training else None
        words = [f"{run.label}: {state.phase or state.state}", f"step {state.step} of {run.steps}" if training else ""]
        words += [f"about {clock(left)} of steps left" if left is not None else ""]
        words += ["" if self._jobs else "another program drives it and can cancel it"]
        self._say(", ".join(filter(None, words)))

    def _finish(self, study: Study, how: str = "Done") -> None:
        record, label = Store(study.out).read(study.task()), study.runs[0].label
        if record is None:
            self.bar.value = 0
            self._say(f"{label}: {'cancelled' if self._cancelled else 'ended'}; nothing of it is kept.")
            return
        self.bar.max = self.bar.value = study.runs[0].steps
        self._say(f"{how}: {label}, {record.status} in {clock(record.duration_s or 0.0)}.")
        self._show_results(study)

    def _cancel(self) -> None:
        if self._jobs:
            self._cancelled, self.cancel_button.disabled = True, True
            self._say("Cancelling: the ranks are being ended.")
            threading.Thread(target=self._jobs.cancel, name="cancel", daemon=True).start()

    def _say(self, text: str) -> None:
        self.status.value = _message(html.escape(text), style="min-height: 3em; display: flex; align-items: center")

    def _show_results(self, study: Study | None = None) -> None:
        # All at once: parts that are put in one by one would make the page jump.
        try:
            self.results.outputs = tuple(map(_output, results(self.bench, study)))
        except LabError as error:
            self.results.outputs = (_output(Prose.of(f"The results cannot be shown: {error}")),)


class Pace:
    """How fast steps follow each other, from the steps seen so far."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, float]] = []

    def left(self, step: int, steps: int, *, now: float) -> float | None:
        """Seconds until the last of `steps`, at `now` in s; None until two different steps have been seen."""
        if not self._seen or step > self._seen[-1][0]:
            self._seen.append((step, now))
        (first, began), (last, latest) = self._seen[0], self._seen[-1]
        if first == last:
            return None
        return max((steps - last) * (latest - began) / (last - first) - (now - latest), 0.0)


def _fields() -> dict[str, Any]:
    import ipywidgets as widgets

    profiles = sorted({path.stem for folder in (Path("slurm"), ROOT / "slurm") for path in folder.glob("*.yaml")})
    choices: dict[str, Any] = {
        "model": list(workloads.MODELS),
        "data": list(workloads.DATASETS),
        "strategy": list(get_args(Strategy)),
        "precision": list(get_args(Run.model_fields["precision"].annotation)),
        "cluster": profiles,
    }
    preferred = {"strategy": "ddp", "cluster": "local"}
    fields: dict[str, Any] = {}
    for name, (label, tip) in NAMES.items():
        look = {"description": label, "tooltip": tip, "style": {"description_width": "12em"}, "layout": {"width": "22em"}}
        if name in choices:
            first = preferred.get(name)
            value = first if first in choices[name] else next(iter(choices[name]), None)
            fields[name] = widgets.Dropdown(options=choices[name], value=value, **look)
        else:
            fields[name] = widgets.IntText(value=START[name], continuous_update=True, **look)
    return fields


def _output(part: Prose | Table | Figure) -> dict[str, Any]:
    """A part of a page as an output of Jupyter; figures as images in HTML, because JupyterLab shows no other with their text."""
    from IPython.core.formatters import DisplayFormatter

    formatter: Any = DisplayFormatter()
    data, metadata = formatter.format(part)
    if isinstance(part, Figure):
        source = base64.b64encode(part.svg.encode()).decode()
        data = {
            "text/html": f'<img alt="{html.escape(part.alt)}" src="data:image/svg+xml;base64,{source}">',
            "text/plain": part.alt,
        }
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def _message(text: str, *, style: str = "") -> str:
    return f'<div role="status" style="line-height: 1.4; {style}">{text}</div>'


def _in_words(problem: Problem) -> str:
    where = f"{NAMES[problem.where][0]}: " if problem.where in NAMES else ""
    return f"{where}{problem.what}" + (f" ({problem.advice})" if problem.advice else "")


def _cost(run: Run) -> str:
    cost = model_cost(run)
    trained = "" if cost.trainable == cost.parameters else f", of which {cost.trainable / 1e6:.3g} million train"
    return (
        f"{cost.parameters / 1e6:.3g} million parameters{trained}; {state_bytes(run) / 1e6:.3g} MB of weights, gradients and "
        "optimizer state on each rank, and activations on top."
    )


def _history(study: Study) -> str:
    record = Store(study.out).read(study.task())
    if record is None:
        return "Not measured yet."
    if record.completed:
        return f"Measured already, in {clock(record.duration_s or 0.0)}: Run shows it and measures nothing."
    return f"Its last run did not complete ({record.status}): Run measures it again."
