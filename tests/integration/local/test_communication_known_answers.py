"""Communication with known answers: a link, a slow rank and a slow loader that take given times.

Real ranks, real gloo, the real DDP and the real training loop; compute sleeps, and a link of one
queue takes a given time per byte after the last rank arrived. Sleeps jitter, and a thread of each
rank takes the processor at random. What the machine adds to a layer is counted, and allowed.
"""

from __future__ import annotations

import importlib
import os
import queue
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ranks import on_ranks
from studies import CORPUS
from torch import distributed as dist
from torch import nn

from lab.config.run import Run
from lab.records.schema import PHASES, Communication, Timing
from lab.worker import calibrate, models, sync_cost
from lab.worker.context import Measurement, RankContext
from lab.worker.data.dataset import Dataset, Sampler
from lab.worker.main import measure
from lab.worker.measure.ddp_hook import Sent
from lab.worker.strategies import ddp

pytestmark = pytest.mark.quiet

LAYERS = 4  # the gradient of each is one bucket
FORWARD, BACKWARD, LINK = 0.030, 0.060, 0.100  # s per layer
SLOW, STALL = 0.240, 0.120  # s on rank 1
SLEEPS = 3 * LAYERS + 1  # of a step: each layer's passes and exchange, and the loader
JITTER = 0.0015
BUCKET_BYTES = 2**18
TOLERANCE = 0.08  # of what should be zero, relative to what it could be taken for

RUN: dict[str, Any] = {
    "model": {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16},
    "data": {"kind": "text", "path": "corpus.txt", "vocab_size": 300},
    "global_batch_size": 2,
    "world_size": 2,
    "steps": 15,
    "warmup_steps": 3,
    "eval_batches": 1,
    "bucket_cap_mb": BUCKET_BYTES / 2**20,
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "even": {},
    "slow rank": {},
    "slow loader": {},
    "alone": {"world_size": 1},
}
ALONE = 2  # the process that trains alone meanwhile, as all of them sleep
FEWEST = (2, 2)  # rounds of a comparison with passes without an exchange, where nobody reads it


class Work(torch.autograd.Function):
    """The identity, which takes a known time forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, backward: float) -> torch.Tensor:
        ctx.backward_time = backward
        jittered_sleep(FORWARD)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        jittered_sleep(ctx.backward_time)
        return gradient, None


class Emulated(nn.Module):
    """Layers whose compute is sleep; the gradient of each is complete after its backward time."""

    def __init__(self, slower: float, late: list[float]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.zeros(BUCKET_BYTES // 4)) for _ in range(LAYERS)]
        )
        self.slower = slower  # in the layer that comes last in the backward pass
        self.late = late

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        begin, x = time.perf_counter(), torch.ones(())
        for number, weight in enumerate(self.weights):
            x = Work.apply(x * (1 + weight.mean()), BACKWARD + self.slower * (number == 0))
        self.late.append((time.perf_counter() - begin) / LAYERS - FORWARD)
        return (x - targets.float().mean() / 300) ** 2


class QueueLink:
    """An exchange of one bucket at a time, each in LINK seconds after the last rank brought it."""

    def __init__(self) -> None:
        self.waiting: queue.SimpleQueue[tuple[torch.Tensor, Any]] = queue.SimpleQueue()
        threading.Thread(target=self.carry, daemon=True).start()

    def __call__(self, bucket: Any) -> Sent:
        buffer = bucket.buffer().div_(dist.get_world_size())
        future: Any = torch.futures.Future()
        self.waiting.put((buffer, future))
        return Sent(future, buffer.nbytes)

    def carry(self) -> None:
        while True:
            buffer, future = self.waiting.get()
            dist.all_reduce(torch.zeros(1))
            end = time.perf_counter() + LINK * buffer.nbytes / BUCKET_BYTES
            dist.all_reduce(buffer)
            time.sleep(max(end - time.perf_counter(), 0))
            future.set_result([buffer])


def jittered_sleep(seconds: float) -> None:
    time.sleep(seconds + random.uniform(-JITTER, JITTER))


def make_noise(stop: threading.Event) -> None:
    """Hold the processor and the interpreter for a moment, again and again."""
    while not stop.wait(random.uniform(0.01, 0.03)):
        end = time.perf_counter() + random.uniform(0.0001, 0.001)
        while time.perf_counter() < end:
            pass


@dataclass(frozen=True)
class Answer:
    """What a scenario measured, and how much longer the machine made the sleeps of a step, in s."""

    measurement: Measurement
    late: float

    @property
    def communication(self) -> Communication:
        traffic = self.measurement.communication
        assert traffic is not None
        return traffic

    @property
    def timing(self) -> Timing:
        assert self.measurement.timing is not None
        return self.measurement.timing

    def near(self, seconds: float, at: float | None = None) -> Any:
        """From 5 % less to 10 % more: other work can make sleeps longer, and hardly shorter.

        The difference of two moments of a step errs by what the later of them does, the one `at`.
        """
        return pytest.approx(1.025 * seconds, abs=0.075 * (at or seconds) + self.late)

    def nothing(self, beside: float) -> Any:
        """Zero, as far as it can be told from these seconds."""
        return pytest.approx(0, abs=TOLERANCE * beside + self.late)


def run_all(process: int, root: str) -> dict[str, Answer | None]:
    """Take part as one rank in the scenarios of a process, with another link, model and loader."""
    os.environ["OMP_NUM_THREADS"] = "1"
    calibrate.PEAK_BUDGET_S = 0.02
    ddp.exchange_for = lambda run: QueueLink()  # type: ignore[assignment]
    importlib.import_module(
        "torch._dynamo"
    )  # the first optimizer does, and would take minutes beside the noise
    load = Sampler.micro_batch
    answers: dict[str, Answer | None] = {}
    stop = threading.Event()
    threading.Thread(target=make_noise, args=(stop,), daemon=True).start()
    rounds = sync_cost.ROUNDS
    rank = process % ALONE
    for name, changes in SCENARIOS.items():
        if (name == "alone") != (process == ALONE):
            continue
        sync_cost.ROUNDS = FEWEST if name.startswith("slow") else rounds
        run = Run.model_validate(RUN | changes)
        slower = SLOW if (name, rank) == ("slow rank", 1) else 0.0
        stall = STALL if (name, rank) == ("slow loader", 1) else 0.0

        late: list[float] = []  # for each pass, how much longer a layer took

        def build(
            run: Run, dataset: Dataset, *, slower: float = slower, late: list[float] = late
        ) -> nn.Module:
            return Emulated(slower, late)

        def stalled(self: Sampler, step: int, micro: int, stall: float = stall) -> Any:
            time.sleep(stall)
            return load(self, step, micro)

        models.build, Sampler.micro_batch = build, stalled  # type: ignore[method-assign]
        folder = Path(root) / name
        place = RankContext(
            rank,
            run.world_size,
            rank,
            "cpu",
            (rank % 2,),
            1,
            "local",
            folder / "address",
            timeout_s=60.0,
        )
        measurement = measure(
            run, place, data_root=Path(root), folder=folder, progress=lambda *report: None
        )
        answers[name] = measurement and Answer(measurement, SLEEPS * float(np.mean(late)))
    stop.set()
    return answers


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("link")
    (folder / "corpus.txt").write_text(CORPUS)
    for name in SCENARIOS:
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def measured(root: Path) -> Iterator[dict[str, Answer]]:
    """Rank 0's answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_CACHE", str(root / "cache"))
        answers = on_ranks(ALONE + 1, run_all, str(root))
        of_rank_0 = answers[0] | answers[ALONE]
        yield {name: answer for name, answer in of_rank_0.items() if answer is not None}


# The link is the bottleneck: it carries one bucket after the other, from the first to the last.
EVEN_TOTAL = LAYERS * LINK
EVEN_END = BACKWARD + EVEN_TOTAL  # after the start of the backward pass
EVEN_EXPOSED = EVEN_END - LAYERS * BACKWARD


def test_total_exposed_and_overlap_are_those_of_the_link(measured: dict[str, Answer]) -> None:
    answer = measured["even"]
    traffic = answer.communication
    assert traffic.per_rank["total"] == [answer.near(EVEN_TOTAL)] * 2
    assert traffic.per_rank["exposed"] == [answer.near(EVEN_EXPOSED, at=EVEN_END)] * 2
    assert traffic.total is not None and traffic.total.median == answer.near(EVEN_TOTAL)
    assert traffic.exposed is not None and traffic.exposed.median == answer.near(
        EVEN_EXPOSED, at=EVEN_END
    )
    assert traffic.overlap is not None and traffic.overlap.median == answer.near(
        EVEN_TOTAL - EVEN_EXPOSED, at=EVEN_END
    )
    assert traffic.per_rank["straggler"] == [answer.nothing(beside=EVEN_EXPOSED)] * 2
    assert traffic.bytes == LAYERS * BUCKET_BYTES and traffic.buckets == [BUCKET_BYTES] * LAYERS


def test_the_other_method_finds_the_same_cost(measured: dict[str, Answer]) -> None:
    answer = measured["even"]
    traffic = answer.communication
    assert traffic.sync_cost is not None and traffic.sync_cost.median == answer.near(
        EVEN_EXPOSED, at=EVEN_END
    )
    assert traffic.sync_exposed is not None and traffic.sync_exposed.median == answer.near(
        EVEN_EXPOSED, at=EVEN_END
    )
    assert traffic.stolen_compute is not None
    assert traffic.stolen_compute.median == answer.nothing(beside=EVEN_EXPOSED)
    assert answer.measurement.checks["communication_methods_agree"]


def test_a_slow_rank_is_a_wait_on_the_other_and_not_a_slow_link(
    measured: dict[str, Answer],
) -> None:
    answer = measured["slow rank"]
    traffic = answer.communication
    idle_from = (
        BACKWARD + (LAYERS - 1) * LINK
    )  # when the link has carried all buckets but that of the slow layer
    last_ready = LAYERS * BACKWARD + SLOW
    end = last_ready + LINK
    assert traffic.per_rank["straggler"][0] == answer.near(last_ready - idle_from, at=last_ready)
    assert traffic.per_rank["straggler"][1] == answer.nothing(beside=SLOW)
    assert traffic.per_rank["exposed"] == [
        answer.near(end - LAYERS * BACKWARD, at=end),
        answer.near(end - last_ready, at=end),
    ]
    assert answer.timing.per_rank["backward"] == [answer.near(end)] * 2


def test_a_slow_loader_is_data_on_its_rank_and_a_wait_on_the_other(
    measured: dict[str, Answer],
) -> None:
    answer = measured["slow loader"]
    traffic, timing = answer.communication, answer.timing
    assert timing.per_rank["data"][1] == answer.near(STALL)
    assert timing.per_rank["data"][0] == answer.nothing(beside=STALL)
    assert traffic.per_rank["straggler"][0] == answer.near(STALL)
    assert traffic.per_rank["exposed"] == [
        answer.near(EVEN_EXPOSED + STALL, at=EVEN_END + STALL),
        answer.near(EVEN_EXPOSED, at=EVEN_END),
    ]


@pytest.mark.parametrize("name", ["even", "slow rank", "slow loader"])
def test_phases_are_the_known_ones_and_close(
    measured: dict[str, Answer], root: Path, name: str
) -> None:
    answer = measured[name]
    timing = answer.timing
    assert timing.per_rank["forward"] == [answer.near(LAYERS * FORWARD)] * 2
    on_time = answer.late < 0.01 * timing.step.median
    assert answer.measurement.checks["phases_close"] or not on_time
    assert timing.phases["other"].median == answer.nothing(beside=timing.step.median / 4)
    table = pd.read_parquet(root / name / "steps.parquet").query("not warmup")
    compute = table["backward"] - table["communication_exposed"]
    expected = LAYERS * BACKWARD + SLOW * ((table["rank"] == 1) & (name == "slow rank"))
    errors = (compute - expected).groupby(table["rank"]).median()
    assert list(errors) == [answer.nothing(beside=LAYERS * BACKWARD)] * 2
    # Against a clock without phases: from the start of the first step to that of the last.
    for _, rows in table.groupby("rank"):
        steps = rows["start"].iloc[-1] - rows["start"].iloc[0]
        room = 0.02 * steps + len(rows) * answer.late
        assert rows[list(PHASES)].to_numpy()[:-1].sum() == pytest.approx(steps, abs=room)


def test_buckets_are_kept_in_the_order_in_which_they_were_sent(
    measured: dict[str, Answer], root: Path
) -> None:
    answer = measured["even"]
    table = pd.read_parquet(root / "even" / "buckets.parquet")
    assert (table["ready"] <= table["launch"]).all() and (table["launch"] <= table["finish"]).all()
    late = table[
        table["step"] >= RUN["warmup_steps"]
    ]  # DDP lays its buckets out anew after the first step
    assert len(late) == 2 * (RUN["steps"] - RUN["warmup_steps"]) * LAYERS and set(
        late["bytes"]
    ) == {BUCKET_BYTES}
    between = late.groupby(["rank", "step"])["ready"].diff().dropna()
    assert between.median() == answer.near(BACKWARD)
    # Both ranks on one clock: the link ends for both at once.
    ends = late.groupby(["step", "bucket"])["finish"]
    assert (ends.max() - ends.min()).median() == answer.nothing(beside=LINK)


def test_the_timeline_shows_the_median_step_of_all_ranks(measured: dict[str, Answer]) -> None:
    answer = measured["even"]
    events = answer.communication.timeline
    names = {"forward", "backward", "optimizer", *(f"bucket {number}" for number in range(LAYERS))}
    assert {(event.rank, event.name) for event in events} == {
        (rank, name) for rank in range(2) for name in names
    }
    assert min(event.start for event in events) >= 0
    for rank in range(2):
        by_name = {event.name: event for event in events if event.rank == rank}
        backward, last = by_name["backward"], by_name[f"bucket {LAYERS - 1}"]
        assert (
            last.ready is not None
            and backward.start < last.ready <= last.start < last.end <= backward.end
        )
        assert last.end - last.ready == answer.near(EVEN_EXPOSED, at=2 * EVEN_EXPOSED)


def test_one_rank_communicates_nothing(measured: dict[str, Answer], root: Path) -> None:
    answer = measured["alone"]
    traffic = answer.communication
    assert (
        traffic == Communication(ddp_overhead_time=traffic.ddp_overhead_time)
        and traffic.ddp_overhead_time is not None
    )
    alone = LAYERS * (FORWARD + BACKWARD)
    assert traffic.ddp_overhead_time.median == answer.nothing(beside=alone)
    assert "communication_methods_agree" not in answer.measurement.checks
    table = pd.read_parquet(root / "alone" / "steps.parquet")
    columns = [f"communication_{name}" for name in ("total", "exposed", "straggler")]
    assert table[columns].isna().all(axis=None)
    assert np.median(table["backward"][3:]) == answer.near(LAYERS * BACKWARD)
    assert not (root / "alone" / "buckets.parquet").exists()
