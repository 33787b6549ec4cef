"""lab bench training: the lab's step time compared with other loops training the same model."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab import machine
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import InputError, LabError, Problem
from lab.formatting import format_seconds, rounded
from lab.records.schema import Stat
from lab.records.statistics import stat

LAB, PLAIN, CONTROL = "instrumented", "plain", "control"  # loops of `lab.worker.selftest`
WARMUP = 5
LIMIT = 1.01  # of the lab's step time to that of a plain loop, or of any other
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"model": "gpt-nano", "micro_batch_size": 8},
    "cuda": {"model": "gpt2-small", "micro_batch_size": 16, "precision": "bf16"},
}
MODEL = {"GPT", "GPTConfig"}  # classes in nanoGPT's file
SETTINGS = {"model", "precision", "micro_batch_size", "compile", "learning_rate", "seed"}


@dataclass(frozen=True)
class Comparison:
    """The lab's step time relative to another loop's, in rounds of one step each."""

    run: Run
    device: str
    loop: str
    rounds: int
    ratio: Stat
    control: Stat  # of two equal plain loops: the noise of this machine
    lab_s: float  # median step times
    loop_s: float

    @property
    def slower(self) -> bool:
        """Whether the lab's step is slower by more than the limit, with certainty."""
        low = self.ratio.interval[0] if self.ratio.interval else self.ratio.median
        return self.ratio.median > LIMIT and low > 1

    def row(self) -> dict[str, str]:
        """For people."""
        return {
            "configuration": ", ".join(self.run.label_parts[:1] + self.run.label_parts[3:]),
            "device": self.device,
            "beside": self.loop,
            "lab / other": _with_interval(self.ratio),
            "plain / plain": _with_interval(self.control),
            "step of the lab": format_seconds(self.lab_s),
            "of the other": format_seconds(self.loop_s),
            "rounds": str(self.rounds),
        }


def _with_interval(ratio: Stat) -> str:
    low, high = ratio.interval or (None, None)
    return rounded(ratio.median, low, high)


def training(
    study: str | None = None,
    *,
    nanogpt: str | None = None,
    rounds: int = 60,
    quick: bool = False,
) -> list[Comparison]:
    """Time the lab's loop, two plain ones and third-party loops in turn, on one GPU or CPU core.

    The third-party loops are nanoGPT's, if the path of its `model.py` is given, and Lightning
    Fabric's, if it is installed. The models are the one-device GPTs of `study`, each trained on
    synthetic samples; without a study, a small GPT, or GPT-2 on a GPU. `quick` takes 20 rounds.
    Raises InputError for a study without such a run or a missing file, LabError if a loop fails.
    """
    if nanogpt is not None:
        _require_model(Path(nanogpt))
    device = "cuda" if machine.gpus() else "cpu"
    steps = {"steps": WARMUP + 1 + (20 if quick else rounds), "warmup_steps": WARMUP}
    path = str(Path(nanogpt).resolve()) if nanogpt else ""
    runs = [Run.model_validate(DEFAULTS[device])]
    if study is not None:
        runs = _of_study(study, device, quick=quick)
    comparisons: list[Comparison] = []
    for run in dict.fromkeys(Run.model_validate(_settings(run) | steps) for run in runs):
        answer = selftest("training", run.model_dump_json(), device, path)
        comparisons += compared(run, device, answer)
    return comparisons


def compared(run: Run, device: str, answer: dict[str, Any]) -> Iterable[Comparison]:
    """One comparison with each other loop, from the seconds per round of each loop."""
    seconds = {name: np.array(values) for name, values in answer["wall"].items()}
    control = stat(seconds[CONTROL] / seconds[PLAIN])
    for name in seconds:
        if name not in {LAB, CONTROL}:
            yield Comparison(
                run=run,
                device=device,
                loop=name,
                rounds=answer["rounds"],
                ratio=stat(seconds[LAB] / seconds[name]),
                control=control,
                lab_s=float(np.median(seconds[LAB])),
                loop_s=float(np.median(seconds[name])),
            )


def _require_model(path: Path) -> None:
    """Raise InputError for a file that is not nanoGPT's model, without executing any of it."""
    advice = "name nanoGPT's model.py"
    if not path.is_file():
        what = "a folder" if path.is_dir() else "no such file"
        raise InputError("bench", [Problem(str(path), what, advice)])
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise InputError("bench", [Problem(str(path), f"not Python: {error}", advice)]) from None
    # Importing train.py, which lies beside it, would start a training.
    if missing := MODEL - {node.name for node in tree.body if isinstance(node, ast.ClassDef)}:
        what = f"does not define {' or '.join(sorted(missing))}"
        raise InputError("bench", [Problem(str(path), what, advice)])


def _of_study(study: str, device: str, *, quick: bool) -> list[Run]:
    """The study's runs that every loop can train on one device of this kind."""
    loaded = Study.load(study, quick=quick)
    runs = [
        run
        for run in loaded.runs
        if run.task == "train"
        and isinstance(run.architecture, GPT)
        and run.world_size == run.grad_accum == 1
        and run.precision != "fp16"  # the other loops do not scale the loss
        and run.device_needed in {"any", device}
    ]
    if not runs:
        what = "no run of a GPT on one device, in fp32, tf32 or bf16, without accumulation"
        raise InputError(loaded.name, [Problem("grid", what, "choose another study")])
    return runs


def _settings(run: Run) -> dict[str, Any]:
    """The settings of a run passed to every loop, with synthetic samples from its vocabulary."""
    words = vocab_size_of(run.architecture, run.dataset)
    data = {"kind": "synthetic", "vocab_size": words}
    return run.model_dump(include=SETTINGS) | {"strategy": "single", "data": data}


def selftest(name: str, *arguments: str) -> Any:
    """The JSON printed by a benchmark of the worker; raises LabError if its ranks fail."""
    command = [sys.executable, "-P", "-m", "lab.worker.selftest", name, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise LabError(f"the ranks of the benchmark failed:\n{process.stderr.strip()[-2000:]}")
    return json.loads(process.stdout)
