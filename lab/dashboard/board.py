"""The bench as widgets: the form, the forecast, what is going on, results; and its looks."""

from __future__ import annotations

import base64
import html
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lab.config.base import problems_of
from lab.config.cluster import Cluster
from lab.config.run import Run
from lab.config.study import Study
from lab.dashboard import store
from lab.dashboard.form import NAMES, OF_RUN, controls, in_words, networks
from lab.dashboard.panels import history, outlook, panel
from lab.dashboard.results import results
from lab.dashboard.store import Bench
from lab.errors import LabError
from lab.launch.calibrate import InterruptedCalibrationError, calibrate
from lab.launch.launcher import Jobs, launch
from lab.launch.plan import obstacle
from lab.launch.status import TRAINING, UNDER_WAY, TaskState, clock, is_driven, status
from lab.perfmodel.calibration import load_calibration
from lab.perfmodel.forecast import Basis
from lab.perfmodel.frozen import freeze
from lab.records.store import Store
from lab.report.blocks import Figure, Markdown, Table

BENCH, VERDICT = "lab-bench", "lab-verdict"  # CSS classes of the whole and of the forecast
# Figures have dark ink on nothing: dark themes turn lightness around and keep hues. Where the theme
# is not known, figures keep a light ground.
STYLE = f"""<style>
.{BENCH} img {{ max-width: 100%; height: auto; background: white; }}
body[data-jp-theme-light] .{BENCH} img {{ background: none; }}
body[data-jp-theme-light="false"] .{BENCH} img {{ filter: invert(0.93) hue-rotate(180deg); }}
body[data-jp-theme-light="false"] .{BENCH} select {{ appearance: auto; color-scheme: dark; }}
.{BENCH} {{ container-type: inline-size; }}
@container (max-width: 40rem) {{
  .{BENCH} .{VERDICT} {{ height: 13em !important; }}
  .{BENCH} table {{ font-size: 0.78em; }}
  .{BENCH} :is(td, th) {{ padding: 2px 3px; }}
}}
</style>"""


POLL_S = 0.3
# Jobs of this process by task folder, so that a dashboard that is shown again can cancel them.
_driven: dict[Path, Jobs] = {}


class Dashboard:
    """The bench; `fields` holds the form's controls by field of Run, and the cluster.

    A thread watches the run, so that other cells can be executed in the meantime.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        offered = networks()
        self._obstacles = {network.name: network.obstacle for network in offered}
        self.fields = controls(offered)
        self._place_widgets()
        self._bases: dict[str, Basis] = {}
        self._jobs: Jobs | None = None
        self._going = self._cancelled = False
        self._suggested = ""  # the last name that followed the choice
        for field in self.fields.values():
            field.observe(lambda change: self._judge(), "value")
        self.run_button.on_click(lambda _: self._run())
        self.calibrate_button.on_click(lambda _: self._calibrate())
        self.cancel_button.on_click(lambda _: self._cancel())
        self.send_button.on_click(lambda _: self._send())
        self._say("Nothing is running.")
        self._show_results()
        self._judge()
        self._attach()

    def _place_widgets(self) -> None:
        import ipywidgets as widgets

        row = {"flex_flow": "row wrap", "align_items": "center"}
        # Heights are fixed, so that changing messages do not move the layout.
        self.verdict = widgets.HTML(layout={"height": "9em", "overflow": "auto"})
        self.verdict.add_class(VERDICT)
        text = {"flex": "1 1 22em", "height": "3.2em", "overflow": "auto"}
        self.run_button = button("Run", "measure this configuration", button_style="primary")
        self.calibrate_button = button(
            "Calibrate", "measure the links of this network, for predictions"
        )
        self.cancel_button = button(
            "Cancel", "end what is running and discard its results", disabled=True
        )
        self.bar = widgets.IntProgress(layout={"width": "12em"})
        self.status = widgets.HTML(layout=text)
        wide = {"width": "40em", "max_width": "calc(100% - 4px)"}
        self.name = widgets.Text(description="Study name", layout=wide)
        self.name.style = {"description_width": "12em"}
        self.send_button = button(
            "Send it to a study", "write this configuration as a study", width="14em"
        )
        self.sent = widgets.HTML(layout=text | {"height": "4.6em"})  # a command takes two lines
        self.results = widgets.Output()
        rows = [
            [*self.fields.values()],
            [self.run_button, self.calibrate_button, self.cancel_button, self.bar, self.status],
            [self.name, self.send_button, self.sent],
        ]
        form, run, send = (widgets.Box(row_widgets, layout=row) for row_widgets in rows)
        look = widgets.HTML(STYLE)
        self.view = widgets.VBox([form, self.verdict, run, send, self.results, look])
        self.view.add_class(BENCH)

    def _repr_mimebundle_(self, **how: Any) -> Any:
        return self.view._repr_mimebundle_(**how)

    def configuration(self) -> Run:
        """The configuration in the form; raises pydantic's ValidationError if it is invalid."""
        return Run.model_validate(self._content())

    def _content(self) -> dict[str, Any]:
        return {name: self.fields[name].value for name in OF_RUN}

    def _cluster(self) -> Cluster:
        """The chosen cluster; raises LabError if it cannot be used from here."""
        name = self.fields["cluster"].value or "local"
        if obstacle := self._obstacles.get(name):
            raise LabError(f"{name} cannot be served from here: {obstacle}")
        return Cluster.load(name)

    def _basis(self, cluster: Cluster) -> Basis:
        """The basis of predictions: records at the last results, and the current calibration."""
        if cluster.name not in self._bases:
            self._bases[cluster.name] = self.bench.basis(cluster)
        basis = self._bases[cluster.name]
        return Basis(basis.records, load_calibration(cluster), basis.model_error)

    def _judge(self) -> None:
        """Show the configuration's error or its forecast, without starting anything."""
        self.send_button.disabled = True
        try:
            run = self.configuration()
            self._suggest(store.suggested(run))
            self.send_button.disabled = False
            cluster = self._cluster()
            label = f"{NAMES['world_size'][0]} (of {cluster.capacity})"
            self.fields["world_size"].description = label
            forecast = outlook(run, self._basis(cluster), cluster=cluster)
            forbidden = obstacle(run, cluster, forecast.forecast.memory_bytes)
            past = history(self.bench.study(run, cluster.name))
            text = panel(forecast, cluster=cluster, history=past)
        except ValidationError as error:
            problems = problems_of(error, Run, self._content())
            forbidden = "; ".join(in_words(it) for key, it in problems if key != "micro_batch_size")
        except LabError as error:
            forbidden = str(error)
        self.verdict.value = message(
            f"<b>Cannot run:</b> {html.escape(forbidden)}" if forbidden else text
        )
        self.run_button.disabled = bool(forbidden) or self._going
        obstacle_here = self._obstacles.get(self.fields["cluster"].value)
        self.calibrate_button.disabled = bool(obstacle_here) or self._going

    def _suggest(self, name: str) -> None:
        """Name the study after the choice, unless the user has named it."""
        if self.name.value in {"", self._suggested}:
            self.name.value = name
        self._suggested = name

    def _run(self) -> None:
        if self._going:
            return
        try:
            cluster = self._cluster()
            study = self.bench.study(self.configuration(), cluster.name)
            self.bench.keep(study)
            if Store(study.out).completed(study.task()):
                self._finish(study, "Measured before, so not again")
            else:
                freeze(study, cluster, basis=self._basis(cluster))
                self._follow(study, launch(study, cluster))
        except (LabError, OSError, ValidationError) as error:
            self._say(f"Not started: {error}")

    def _attach(self) -> None:
        """Follow a run in progress: this process's, one without its driver, another program's."""
        try:
            running = [
                (study, state)
                for study in self.bench.studies()
                for state in status(study)
                if state.state in UNDER_WAY
            ]
            for study, state in running[:1]:
                cluster = study.folder.parent.name
                study = self.bench.study(state.task.run, cluster)
                jobs = _driven.get(Store(study.out).folder(state.task))
                if jobs is None or jobs.done:
                    jobs = None if is_driven(study) else launch(study, cluster)
                self._follow(study, jobs)
        except (LabError, OSError) as error:
            self._say(f"A run that is still going cannot be followed: {error}")

    def _follow(self, study: Study, jobs: Jobs | None) -> None:
        """Show a run from now on; `jobs` is None if another program drives it."""
        self._jobs = jobs
        if jobs is not None:
            _driven[Store(study.out).folder(study.task())] = jobs
        label = study.runs[0].label
        self._start(label, lambda: self._watch(study, jobs), can_cancel=jobs is not None)

    def _start(self, name: str, work: Callable[[], None], *, can_cancel: bool = True) -> None:
        """Do some work in a thread; nothing else can be started until it has ended."""

        def to_its_end() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 nothing else would report it
                kind = "" if isinstance(error, LabError) else f"{type(error).__name__}: "
                self._say(f"{name}: {kind}{error}")
            finally:
                self._going, self.cancel_button.disabled = False, True
                self._judge()

        self._going, self._cancelled = True, False
        self.run_button.disabled = self.calibrate_button.disabled = True
        self.cancel_button.disabled = not can_cancel
        threading.Thread(target=to_its_end, name="bench", daemon=True).start()

    def _watch(self, study: Study, jobs: Jobs | None) -> None:
        pace = Pace()
        (state,) = status(study, study.tasks)
        while not jobs.done if jobs else state.state in UNDER_WAY:
            self._show_progress(state, pace)
            time.sleep(POLL_S)
            (state,) = status(study, study.tasks)
        if jobs:
            jobs.wait(progress=False)
        self._finish(study)

    def _show_progress(self, state: TaskState, pace: Pace) -> None:
        if self._cancelled:
            return
        self.bar.max, self.bar.value = state.task.run.steps, done(state)
        self._say(progress_line(state, pace, now=time.monotonic(), ours=self._jobs is not None))

    def _finish(self, study: Study, how: str = "Done") -> None:
        record, label = Store(study.out).read(study.task()), study.runs[0].label
        if record is None:
            self.bar.value = 0
            end = "cancelled" if self._cancelled else "ended"
            self._say(f"{label}: {end}; nothing of it is kept.")
            return
        self.bar.max = self.bar.value = study.runs[0].steps
        took = "" if record.duration_s is None else f" in {clock(record.duration_s)}"
        self._say(f"{how if record.completed else 'Ended'}: {label}, {record.status}{took}.")
        self._show_results(study)

    def _calibrate(self) -> None:
        """Measure the links and the devices of the chosen cluster."""
        if self._going:
            return
        name = self.fields["cluster"].value
        self._jobs, self.bar.max = None, 100

        def watch(text: str, share: float) -> bool:
            if not self._cancelled:
                self.bar.value = round(self.bar.max * share)
                self._say(f"Calibrating {name}, {text}")
            return self._cancelled

        def work() -> None:
            try:
                sizes = calibrate(name, progress=False, watch=watch).wanted
                self.bar.value = self.bar.max
                self._say(f"Calibrated: {name}, world sizes {', '.join(map(str, sizes))}.")
            except InterruptedCalibrationError:
                self.bar.value = 0
                self._say("Calibration cancelled; world sizes that were measured are kept.")

        self._start(f"Calibrating {name}", work)

    def _cancel(self) -> None:
        self._cancelled, self.cancel_button.disabled = True, True
        self._say("Cancelling: the ranks are being ended.")
        if self._jobs:
            threading.Thread(target=self._jobs.cancel, name="cancel", daemon=True).start()

    def _send(self) -> None:
        """Write the configuration as a study beside the bench, and show how to measure it."""
        try:
            run = self.configuration()
            name = self.name.value.strip() or store.suggested(run)
            study = store.send(run, name=name, reports=self.bench.folder.parent)
            command = html.escape(study.command("run", [self.fields["cluster"].value or "local"]))
            written = f"Written: {html.escape(study.name)}, {len(study.tasks)} jobs."
            self.sent.value = message(f"{written} Measure it: <code>{command}</code>")
        except (LabError, OSError, ValidationError) as error:
            self.sent.value = message(html.escape(f"Not sent: {error}"))

    def _say(self, text: str) -> None:
        style = "min-height: 3em; display: flex; align-items: center"
        self.status.value = message(html.escape(text), style=style)

    def _show_results(self, study: Study | None = None) -> None:
        self._bases.clear()
        # All at once: inserting parts one by one would make the page jump.
        try:
            self.results.outputs = tuple(map(output, results(self.bench, study)))
        except LabError as error:
            self.results.outputs = (output(Markdown.of(f"The results cannot be shown: {error}")),)


def button(name: str, tip: str, *, width: str = "8em", **state: Any) -> Any:
    """A button with a tooltip."""
    import ipywidgets as widgets

    return widgets.Button(description=name, tooltip=tip, layout={"width": width}, **state)


def output(part: Markdown | Table | Figure) -> dict[str, Any]:
    """Part of a page as a Jupyter output; figures as HTML, or JupyterLab drops their text."""
    from IPython.core.formatters import DisplayFormatter

    formatter: Any = DisplayFormatter()
    data, metadata = formatter.format(part)
    if isinstance(part, Figure):
        source = base64.b64encode(part.svg.encode()).decode()
        image = f'src="data:image/svg+xml;base64,{source}"'
        data = {"text/html": f'<img alt="{html.escape(part.alt)}" {image}>', "text/plain": part.alt}
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def message(text: str, *, style: str = "") -> str:
    """HTML that screen readers announce when it changes."""
    return f'<div role="status" style="line-height: 1.4; {style}">{text}</div>'


class Pace:
    """The rate of steps."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, float]] = []

    def left(self, step: int, steps: int, *, now: float) -> float | None:
        """Seconds at `now` (s) until the last of `steps`; None before two different steps."""
        if not self._steps or step > self._steps[-1][0]:
            self._steps.append((step, now))
        (first, began), (last, latest) = self._steps[0], self._steps[-1]
        if first == last:
            return None
        return max((steps - last) * (latest - began) / (last - first) - (now - latest), 0.0)


def done(state: TaskState) -> int:
    """Steps to show as done."""
    if state.phase in TRAINING:
        return state.step
    return state.task.run.steps if state.phase == "evaluating" else 0


def progress_line(state: TaskState, pace: Pace, *, now: float, ours: bool) -> str:
    """Phase, step, time left at `now` (s), loss, and whether another program drives the run."""
    run = state.task.run
    words = [f"{run.label}: {state.phase or state.state}"]
    if state.phase in TRAINING:
        seconds = pace.left(state.step, run.steps, now=now)
        words += [f"step {state.step} of {run.steps}"]
        words += ["" if seconds is None else f"about {clock(seconds)} of steps left"]
        words += ["" if state.loss is None else f"loss {state.loss:.3f}"]
    words += ["" if ours else "another program drives it and can cancel it"]
    return ", ".join(filter(None, words))
