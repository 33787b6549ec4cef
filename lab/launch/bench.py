"""lab bench: overhead of measuring, the lab's step beside other loops, equal losses, and others."""

from __future__ import annotations

import ast
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lab import machine
from lab.config.base import InvalidValueError, problems_of
from lab.config.datasets import vocab_size_of
from lab.config.models import GPT, MODELS
from lab.config.own import parsed
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.config.study import Study
from lab.errors import InputError, LabError
from lab.formatting import count, format_seconds, rounded
from lab.launch.bench_driver import DriverCost as DriverCost
from lab.launch.bench_driver import driver_costs as driver_costs
from lab.launch.bench_public import PublicBench as PublicBench
from lab.launch.bench_public import public as public
from lab.launch.held_out import ERROR_LIMIT as ERROR_LIMIT
from lab.launch.held_out import HeldOut as HeldOut
from lab.launch.held_out import HeldOutStrategies as HeldOutStrategies
from lab.launch.held_out import held_out as held_out
from lab.launch.held_out import held_out_strategies as held_out_strategies
from lab.perfmodel.hardware import machine as described_machine
from lab.perfmodel.planner import Space, best
from lab.perfmodel.predict import Described, predict
from lab.records.schema import Stat
from lab.records.statistics import stat

LAB, PLAIN, CONTROL = "instrumented", "plain", "control"  # loops of `lab.worker.selftest`
WARMUP = 5
LIMIT = 1.01  # of the lab's step time to that of a plain loop, or of any other
DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": {"model": "gpt-nano", "micro_batch_size": 8},
    "cuda": {"model": "gpt2-small", "micro_batch_size": 16, "precision": "bf16"},
}
NANOGPT_CLASSES = {"GPT", "GPTConfig"}
SHARED = {"model", "precision", "micro_batch_size", "compile", "learning_rate", "seed"}
# How ranks run a script as each loop.
_WAYS = {PLAIN: PLAIN, CONTROL: PLAIN, LAB: LAB}

# Relative. Summing in another order rounds differently, and AdamW amplifies the difference.
TOLERANCES = {"fp32": 2e-4, "bf16": 2e-2}
REFERENCE = "single"
BASE: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 2, "heads": 2, "width": 64, "block_size": 64},
    "global_batch_size": 8,
    "steps": 8,
    "warmup_steps": 2,
    "lr_warmup_steps": 2,
    "eval_batches": 1,
    "grad_clip": 0.5,  # low enough that most steps are clipped, by the norm of the whole model
}
# Settings by a label for the table: those of one strategy, and those that work with many.
OWN: dict[str, dict[str, dict[str, Any]]] = {
    "naive_ddp": {"flat": {"flat": True}},
    "fsdp": {"not resharded": {"reshard_after_forward": False}},
    "pipeline_parallel": {"1f1b": {"schedule": "1f1b", "microbatches": 4}},
}
COMBINED: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "accumulated": {"grad_accum": 2},
    "checkpointed": {"activation_checkpointing": True},
}
# A pipeline accumulates over its microbatches; checkpointing is tested in each kind of wrapper.
LEFT_OUT = {
    ("pipeline_parallel", "accumulated"),
    *((name, "checkpointed") for name in ("naive_ddp", "zero1", "data_parallel")),
}

MACHINE = "h100x8:nvlink4:infiniband-ndr"
RANKS = 4096
PREDICTION_LIMIT_S, SEARCH_LIMIT_S = 1.0, 10.0


def selftest(name: str, *arguments: str) -> Any:
    """The JSON printed by a benchmark of the worker; raises LabError if its ranks fail."""
    command = [sys.executable, "-P", "-m", "lab.worker.selftest", name, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise LabError(f"the ranks of the benchmark failed:\n{process.stderr.strip()[-2000:]}")
    return json.loads(process.stdout)


def _with_interval(ratio: Stat) -> str:
    low, high = ratio.interval or (None, None)
    return rounded(ratio.median, low, high)


@dataclass(frozen=True)
class Overhead:
    """Ratio of the lab loop's step time to a plain loop's; `control` is plain over plain."""

    world_size: int
    rounds: int
    ratio: Stat
    control: Stat
    cpu_ratio: Stat  # the same for the CPU time of all ranks together
    cpu_control: Stat
    step_s: dict[str, float]  # medians by loop: LAB, PLAIN, CONTROL
    largest_loss_difference: float | None  # between the two loops; unknown for a script
    what: str = "rounds"
    device: str = "cpu"

    @property
    def within_limit(self) -> bool:
        """Whether the ratio is at most LIMIT."""
        return self.ratio.median <= LIMIT

    def __str__(self) -> str:
        ratio, control, cpu = map(_with_interval, (self.ratio, self.control, self.cpu_ratio))
        instrumented, plain = (self.step_s[name] * 1e3 for name in (LAB, PLAIN))
        return (
            f"instrumented / plain: {ratio}, limit {LIMIT}; plain / plain: {control}; "
            f"CPU time: {cpu}; {self.rounds} {self.what} on "
            f"{count(self.world_size, f'{self.device.upper()} rank')}, "
            f"median step {instrumented:.1f} ms against {plain:.1f} ms"
        )


def overhead(*, world_size: int = 2, quick: bool = False) -> Overhead:
    """Time the overhead of measuring a GPT on GPUs or CPU ranks in 200 rounds (`quick`: 40).

    Raises LabError if the ranks fail.
    """
    gpus = len(machine.gpus())
    size = min(world_size, gpus) if gpus else world_size
    device = "cuda" if gpus else "cpu"
    steps = WARMUP + 1 + (40 if quick else 200)
    settings = {"world_size": size, "steps": steps, "warmup_steps": WARMUP}
    run = Run.model_validate(DEFAULTS[device] | settings)
    answer = selftest("overhead", run.model_dump_json(), device)
    return _overhead(
        {name: np.array(seconds) for name, seconds in answer["wall"].items()},
        {name: np.array(seconds) for name, seconds in answer["cpu"].items()},
        world_size=size,
        largest_loss_difference=answer["largest_loss_difference"],
        device=device,
    )


def script_overhead(command: str | Sequence[str], *, ranks: int = 1, rounds: int = 7) -> Overhead:
    """Measure the overhead of measuring a step of a script in this directory, on CPU ranks.

    A round is one run with the lab's hooks and two equal ones that only note the end of each step,
    in random order. Rounds are compared by the median step of the slowest rank and by the CPU time
    of all ranks. Raises InputError for a script that cannot be measured, LabError if it fails.
    """
    model = {"kind": "script", "command": command, "directory": str(Path.cwd())}
    model["launcher"] = "python" if ranks == 1 else "torchrun"
    fields = {"model": model, "world_size": ranks, "steps": 60, "warmup_steps": 10}
    try:
        run = Run.model_validate(fields, context={"folder": Path.cwd(), "digests": {}})
    except ValidationError as error:
        raise InputError("bench", [one for _, one in problems_of(error, Run, fields)]) from None
    orders = random.Random(run.seed)
    medians: dict[str, list[tuple[float, float]]] = {way: [] for way in _WAYS}
    for _ in range(rounds):
        for way in orders.sample(list(_WAYS), len(_WAYS)):
            times = np.array(selftest("script", run.model_dump_json(), _WAYS[way]))
            wall, cpu = times[:, 0].max(axis=0), times[:, 1].sum(axis=0)
            medians[way].append((float(np.median(wall)), float(np.median(cpu))))
    walls, cpus = ({way: np.array(pairs)[:, k] for way, pairs in medians.items()} for k in (0, 1))
    name = run.script.name if run.script else ""
    return _overhead(
        walls,
        cpus,
        world_size=ranks,
        largest_loss_difference=None,
        what=f"rounds of {run.steps} steps of {name}",
    )


def _overhead(wall: dict[str, Any], cpu: dict[str, Any], **fields: Any) -> Overhead:
    """The overhead computed from seconds by loop and round."""
    return Overhead(
        rounds=len(wall[PLAIN]),
        ratio=stat(wall[LAB] / wall[PLAIN]),
        control=stat(wall[CONTROL] / wall[PLAIN]),
        cpu_ratio=stat(cpu[LAB] / cpu[PLAIN]),
        cpu_control=stat(cpu[CONTROL] / cpu[PLAIN]),
        step_s={name: float(np.median(seconds)) for name, seconds in wall.items()},
        **fields,
    )


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
        raise InputError.of("bench", str(path), what, advice)
    try:
        tree = parsed(path)
    except InvalidValueError as error:
        what = f"not Python: {error.faults[0][0]}"
        raise InputError.of("bench", str(path), what, advice) from None
    # Importing train.py, which lies beside it, would start a training.
    if missing := NANOGPT_CLASSES - {
        node.name for node in tree.body if isinstance(node, ast.ClassDef)
    }:
        what = f"does not define {' or '.join(sorted(missing))}"
        raise InputError.of("bench", str(path), what, advice)


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
        raise InputError.of(loaded.name, "grid", what, "choose another study")
    return runs


def _settings(run: Run) -> dict[str, Any]:
    """The settings of a run passed to every loop, with synthetic samples from its vocabulary."""
    words = vocab_size_of(run.architecture, run.dataset)
    data = {"kind": "synthetic", "vocab_size": words}
    return run.model_dump(include=SHARED) | {"strategy": "single", "data": data}


@dataclass(frozen=True)
class EqualLoss:
    """One run compared with `single`; the losses are None if it did not run, for `reason`."""

    name: str
    strategy: str
    world_size: int
    precision: str
    final_loss: float | None
    validation_loss: float | None
    difference: float | None  # the largest relative one, over all steps and the validation loss
    tolerance: float
    reason: str = ""

    @property
    def equal(self) -> bool | None:
        """Whether the difference is within the tolerance; None if the run did not take place."""
        return None if self.difference is None else self.difference <= self.tolerance


def cases(world_sizes: Sequence[int] = (1, 2), *, quick: bool = False) -> dict[str, dict[str, Any]]:
    """Run settings by name: each strategy at each world size and with its own settings.

    Unless `quick`, they include the settings that work with many strategies.
    """
    runs: dict[str, dict[str, Any]] = {REFERENCE: {"strategy": REFERENCE}}
    for strategy, facts in STRATEGIES.items():
        own = dict(OWN.get(strategy, {}))
        if not quick:
            own |= {w: more for w, more in COMBINED.items() if (strategy, w) not in LEFT_OUT}
        widest = 1 if strategy == REFERENCE or facts.gpus_only else max(world_sizes)
        for size in () if strategy == REFERENCE else world_sizes:
            runs[f"{strategy} {size}"] = {"strategy": strategy, "world_size": size}
        for word, settings in own.items():
            base = {"strategy": strategy, "world_size": widest}
            runs[f"{strategy} {widest} {word}"] = base | settings
    return runs


def equal_losses(*, quick: bool = False) -> list[EqualLoss]:
    """Compare the losses of a small GPT trained by every strategy, on GPUs or two CPU ranks.

    Raises LabError if a run fails for any reason other than being impossible on this machine.
    """
    gpus = len(machine.gpus())
    sizes = sorted({1, min(gpus or 2, 2)})
    runs = {name: BASE | changes for name, changes in cases(sizes, quick=quick).items()}
    answers = selftest("losses", json.dumps(runs), "cuda" if gpus else "cpu")
    return [
        _equal_loss(name, Run.model_validate(settings), answers[name], answers[REFERENCE])
        for name, settings in runs.items()
    ]


def _equal_loss(
    name: str, run: Run, answer: dict[str, Any], reference: dict[str, Any]
) -> EqualLoss:
    """A row from the `loss` by step and `validation_loss`, or from the `reason` for not running."""
    difference = None
    if "reason" not in answer:
        losses, expected = ([*a["loss"], a["validation_loss"]] for a in (answer, reference))
        difference = max(abs(x / y - 1) for x, y in zip(losses, expected, strict=True))
    return EqualLoss(
        name,
        run.strategy,
        run.world_size,
        run.stated.precision,
        final_loss=None if difference is None else answer["loss"][-1],
        validation_loss=answer.get("validation_loss"),
        difference=difference,
        tolerance=TOLERANCES[run.stated.precision],
        reason=answer.get("reason", ""),
    )


@dataclass(frozen=True)
class Speed:
    """Seconds for one prediction for RANKS ranks and for a search over `candidates` plans."""

    prediction_s: float
    candidates: int
    search_s: float

    @property
    def within_limit(self) -> bool:
        """Whether both stay within their limits."""
        return self.prediction_s <= PREDICTION_LIMIT_S and self.search_s <= SEARCH_LIMIT_S

    def __str__(self) -> str:
        return (
            f"a prediction for {RANKS} ranks: {self.prediction_s:.3f} s, "
            f"limit {PREDICTION_LIMIT_S:g} s; "
            f"{self.candidates:,} candidates: {self.search_s:.2f} s, limit {SEARCH_LIMIT_S:g} s"
        )


def planner_speed() -> Speed:
    """Time the prediction and planning of GPT-2 XL training on a described machine."""
    model = MODELS["gpt2-xl"]
    assert isinstance(model, GPT)
    run = Run.model_validate(
        {"model": "gpt2-xl", "data": "synthetic", "precision": "bf16", "global_batch_size": RANKS}
    )
    study = Study(
        folder=Path(),
        title="",
        question="",
        scaling="strong",
        runs=(run,),
        axes=(),
        repeats=1,
        baseline={"world_size": RANKS},
    )
    space = Space(
        layers=model.layers,
        activation_bytes_per_sample=2 * model.block_size * model.width,
        tensor=(1, 5, 25),
        pipeline=(1, 2, 4, 8, 16),
        precisions=("bf16", "fp32"),
        buckets_mb=(1.0, 5.0, 10.0, 25.0, 50.0, 100.0),
    )
    began = time.perf_counter()
    predict(study, machine=MACHINE, world_sizes=[RANKS])
    predicted = time.perf_counter()
    costing = Described(model, 0, described_machine(MACHINE))
    plan = best(costing, space, world_size=6400, global_batch=6400 * 64)
    return Speed(predicted - began, plan.searched, time.perf_counter() - predicted)
