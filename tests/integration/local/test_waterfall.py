"""Waterfalls with known answers: what is put into a step on two ranks is what the report names.

Real ranks, real DDP, real gloo and the real training loop. Compute is emulated, ranks sleep for the
times of a described GPU, so that the answers hold on a busy machine; only where a core is stolen do
ranks compute, for a known CPU time, and what they lose to others is compared with what they lost.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from ranks import on_ranks
from studies import CORPUS
from torch import nn

from lab.analysis.findings import largest_loss
from lab.analysis.scaling import summary
from lab.analysis.waterfall import Waterfall, waterfalls
from lab.config.emulation import Compute, Emulated, Link
from lab.config.run import Run
from lab.perfmodel.flops import flops_per_sample
from lab.records.store import Record
from lab.records.table import table
from lab.worker import calibrate, emulation, models, sync_cost
from lab.worker.context import Measurement, RankContext
from lab.worker.data.dataset import Sampler
from lab.worker.emulation import Pauses, SleepingOptimizer
from lab.worker.main import measure

pytestmark = pytest.mark.alone

SAMPLE_S = 0.020  # of compute
SAMPLES = 4
INJECTED_S = 0.080
REPEATS = 3  # fewer support no sentence
BYTES_PER_S = 1e7  # of the emulated link, on which the model's gradients take 0.2 s
RUN: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 192, "block_size": 16},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": SAMPLES,
    "steps": 6,
    "warmup_steps": 2,
    "eval_batches": 1,
}
SCENARIOS = ("data", "optimizer", "straggler", "transfer", "others")
# One rank goes without any cause: these scenarios have the baseline of the first.
SAME_BASELINE = ("data", "optimizer", "straggler")
# Which process is the one rank of the others: the two compute or sleep side by side, on a core each.
ALONE = {"data": 1, "transfer": 1, "others": 0}
CHANGES: dict[str, dict[str, Any]] = {
    # One exchange after the backward pass, behind which nothing hides.
    "transfer": {"strategy": "naive_ddp", "flat": True},
    # In a shorter time the ticks of a core do not tell who used it.
    "others": {"steps": 26},
}
NAMES = {
    "data": "waiting for data",
    "optimizer": "the optimizer",
    "straggler": "waiting for slower ranks",
    "transfer": "moving gradients",
    "others": "other processes",
}


def emulated(scenario: str) -> Emulated | None:
    """What a scenario emulates: nothing where it computes, else compute, and one a slow link."""
    if scenario == "others":
        return None
    peak = emulation.emulated_gpu("V100").peak("fp32")
    assert peak is not None
    mfu = flops_per_sample(Run.model_validate(RUN)) / SAMPLE_S / peak[0]
    compute = Compute(emulated="V100", mfu=mfu)
    if scenario != "transfer":
        return Emulated(compute=compute)
    link = Link(bandwidth_gbit=8 * BYTES_PER_S / 1e9)
    return Emulated(compute=compute, link=link, way="pacing")


class Burn(torch.autograd.Function):
    """The identity, which takes half of a CPU time forward and half backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        burn(seconds / 2)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        burn(ctx.seconds / 2)
        return gradient, None


def burn(seconds: float) -> None:
    """Take this much CPU time, however long others make it last."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Burner(nn.Module):
    """One weight, and a known CPU time for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = Burn.apply(self.weight, SAMPLE_S * len(inputs))  # type: ignore[no-untyped-call]
        return (loss - targets.float().mean() / 300) ** 2


def thief_on(core: int) -> int:
    """The process id of a loop on this core, which has no parent: a child would be the run's own."""
    loop = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    start = ["sh", "-c", '"$0" -c "$1" >/dev/null 2>&1 & echo $!', sys.executable, loop]
    return int(subprocess.run(start, capture_output=True, text=True, check=True).stdout)


@contextmanager
def injected(scenario: str, run: Run, rank: int, core: int) -> Iterator[None]:
    """Put the scenario's cause into two ranks; one rank is the baseline and goes without it."""
    with pytest.MonkeyPatch.context() as patch:
        if scenario == "others":
            patch.setattr(models, "build", lambda run, dataset: Burner())
        if run.world_size == 1:
            yield
        elif scenario == "data":
            load = Sampler.micro_batch
            patch.setattr(
                Sampler, "micro_batch", lambda *args: (time.sleep(INJECTED_S), load(*args))[1]
            )
            yield
        elif scenario == "optimizer":
            patch.setattr(SleepingOptimizer, "step", lambda *_: time.sleep(INJECTED_S))
            yield
        elif scenario == "straggler" and rank == 1:
            last = Pauses.lasting
            patch.setattr(Pauses, "lasting", lambda self, seconds: last(self, seconds + INJECTED_S))
            yield
        elif scenario == "others" and rank == 1:
            thief = thief_on(core)
            try:
                yield
            finally:
                os.kill(thief, signal.SIGKILL)
        else:
            yield


def run_all(rank: int, root: str) -> list[tuple[str, Run, int, Measurement | None]]:
    """Take part as one rank in all scenarios and repeats, on a core of its own."""
    os.environ["OMP_NUM_THREADS"] = "1"
    calibrate.PEAK_BUDGET_S, sync_cost.ROUNDS = 0.02, (2, 2)
    cores = sorted(os.sched_getaffinity(0))
    core = cores[rank % len(cores)]
    os.sched_setaffinity(0, {core})
    measured = []
    for repeat in range(REPEATS):
        for size, scenario in itertools.product((1, 2), SCENARIOS):
            if size == 1 and ALONE.get(scenario) != rank:
                continue
            changes = CHANGES.get(scenario, {}) | {"world_size": size}
            run = Run.model_validate(RUN | changes)
            folder = Path(root) / f"{scenario}-{size}-{repeat}"
            folder.mkdir(exist_ok=True)
            number = rank % size
            place = RankContext(
                *(number, size, number, "cpu", (core,), 1, "none", folder / "address"),
                timeout_s=60.0,
                emulated=emulated(scenario),
            )
            with injected(scenario, run, rank, core):
                result = measure(
                    run, place, data_root=Path(root), folder=folder, progress=lambda *_: None
                )
            measured.append((scenario, run, repeat, result))
    return measured


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    """The records of each scenario, of one rank and of two."""
    root = tmp_path_factory.mktemp("causes")
    (root / "corpus.txt").write_text(CORPUS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        answers = on_ranks(2, run_all, str(root))
    made: dict[str, list[Record]] = {scenario: [] for scenario in SCENARIOS}
    # Of two ranks the first has what both measured.
    alone = [one for one in answers[1] if one[1].world_size == 1]
    for scenario, run, repeat, measured in [*alone, *answers[0]]:
        assert measured is not None
        made[scenario].append(
            Record(
                run_id=run.id,
                repeat=repeat,
                run=run,
                status="completed",
                finished_at="2025-01-01T00:01:00+00:00",
                environment=measured.environment,
                timing=measured.timing,
                communication=measured.communication,
            )
        )
    baseline = [record for record in made[SAME_BASELINE[0]] if record.run.world_size == 1]
    return made | {name: [*baseline, *made[name]] for name in SAME_BASELINE[1:]}


def fall_of(records: list[Record]) -> Waterfall:
    frame = summary(table(records), baseline={"world_size": 1}, scaling="strong")
    (fall,) = [fall for fall in waterfalls(frame, records) if fall.compared]
    total = fall.ideal.value + sum(loss.value for loss in fall.losses.values())
    assert total == pytest.approx(fall.step.value, rel=0.02)
    return fall


def delay_of(fall: Waterfall) -> float:
    """What other processes added to the step of one rank, in s: it took more than its compute."""
    return max(2 * fall.ideal.value - SAMPLES * SAMPLE_S, 0)


def others_worked(records: list[Record]) -> bool:
    """Whether others than the injected process took a noticeable share of the cores."""
    places = [(record.run.world_size, record.environment) for record in records]
    stolen = records[0].emulation == ""
    return any(
        place is not None and place.disturbed for size, place in places if size == 1 or not stolen
    )


def injected_s(fall: Waterfall, records: list[Record]) -> float:
    if fall.largest == "transfer":  # one bucket, which two ranks exchange after the backward pass
        sent = records[-1].communication
        assert sent is not None and sent.bytes is not None
        return sent.bytes / BYTES_PER_S
    # Nothing but the thief and what else ran here made this step longer than the ideal one.
    return fall.step.value - fall.ideal.value if fall.largest == "others" else INJECTED_S


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_injected_cause_is_named_with_its_time(
    scenario: str, records: dict[str, list[Record]]
) -> None:
    fall, disturbed = fall_of(records[scenario]), others_worked(records[scenario])
    if scenario == "others" and disturbed:
        pytest.skip("other processes took the cores already without the one that steals")
    assert fall.largest == scenario and fall.name(scenario) == NAMES[scenario]
    # CPU time is counted in ticks of 10 ms.
    tolerance = 0.15 if scenario == "others" else 0.1
    injected = injected_s(fall, records[scenario])
    room = tolerance * injected + delay_of(fall)
    assert fall.losses[scenario].value == pytest.approx(injected, abs=room), fall
    sentence = largest_loss(fall)
    if not disturbed:  # else three repeats may differ too much for a claim
        assert sentence is not None and f"is {NAMES[scenario]}; first to " in sentence


def test_the_ideal_step_is_half_of_one_ranks(records: dict[str, list[Record]]) -> None:
    fall = fall_of(records["optimizer"])
    timings = [record.timing for record in records["optimizer"] if record.run.world_size == 1]
    steps = [timing.step.median for timing in timings if timing is not None]
    assert fall.ideal.value == pytest.approx(median(steps) / 2, rel=0.05)
    # Sleeps are hardly shorter than their time, and longer as others hold the cores.
    assert fall.ideal.value > 0.95 * SAMPLES * SAMPLE_S / 2
