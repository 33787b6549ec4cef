"""The ladder without its ranks: what a file may use, judges on made-up evidence, orders of a pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lab
from lab.course import ranks
from lab.course.check import WrongAnswerError
from lab.course.ladder import RUNGS, Evidence, Trial, peak, slots
from lab.course.release import LESSONS, copy_lessons
from lab.course.solutions import without_solutions
from lab.launch.confined import Ended, line_in

FILES = LESSONS / "studies" / "ladder"


def solved_order(stage: int, stages: int, micro_batches: int) -> list[tuple[int, int]]:
    namespace: dict[str, Any] = {}
    exec((FILES / "schedule.py").read_text(), namespace)
    codes = {"forward": 0, "backward": 1}
    return [(codes[what], m) for what, m in namespace["order"](stage, stages, micro_batches)]


def gpipe(micro_batches: int) -> list[tuple[int, int]]:
    return [(kind, m) for kind in (0, 1) for m in range(micro_batches)]


@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_takes_the_time_of_gpipe_and_keeps_less(stages: int, micro_batches: int) -> None:
    orders = [solved_order(stage, stages, micro_batches) for stage in range(stages)]
    best = 3 * (micro_batches + stages - 1)
    assert slots(orders) == slots([gpipe(micro_batches)] * stages) == best
    assert [peak(passes) for passes in orders] == [
        min(stages - stage, micro_batches) for stage in range(stages)
    ]
    assert peak(gpipe(micro_batches)) == micro_batches


def test_stages_that_wait_for_each_other_never_end() -> None:
    assert slots([[(0, 0), (1, 0), (0, 1), (1, 1)], [(0, 1), (0, 0), (1, 0), (1, 1)]]) is None
    assert slots([[(1, 0), (0, 0)]]) is None


@pytest.mark.parametrize("name", RUNGS)
def test_a_solved_file_may_run_and_a_released_one_too(name: str) -> None:
    text = (FILES / RUNGS[name].file).read_text()
    assert not ranks.forbidden(text)
    released = without_solutions(text)
    assert not ranks.forbidden(released)
    assert "SOLUTION" not in released and released.count("# Put your answer here.") >= 1
    assert text.count("### BEGIN SOLUTION") == released.count("# Put your answer here.")
    lines = [line for line in text.splitlines() if line not in released.splitlines()]
    assert len(lines) <= 25  # what is left to write


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "from os import system",
        "import torch.utils.cpp_extension",
        "from torch import *",
        "from torch import ops",
        "from . import naive",
        "from lab.worker.measure import collective_trace",
        "from lab.worker.strategies import naive_ddp",
        "eval('1')",
        "open('x', 'w')",
        "__import__('os')",
        "getattr(int, 'real')",
        "().__class__.__bases__[0].__subclasses__()",
        "from torch import distributed as dist\ndist.all_reduce = print",
        "from torch import distributed as dist\ndist.distributed_c10d.os.fork()",
        "from torch import distributed as dist\ndel dist.all_reduce",
        "import torch\ntorch._C",
        "import torch\ntorch.save(1, 'x')",
        "import torch\ntorch.distributed.ProcessGroup.allreduce = None",
        "from torch import nn\nnn.parallel.DistributedDataParallel",
        "from lab.worker.strategies.base import Strategy\nStrategy.clip = None",
        "from torch import distributed as dist\nother = dist\nother.all_reduce = print",
        "def wrap(self, model, setup):\n    setup.recorder.calls.clear()",
        "def wrap(self, model, setup):\n    self.records(setup)",
        "from lab.worker.strategies.base import CallRecorder",
        "__builtins__",
        "x = 1\nx +",
        "\0",
        "x = '" + "a" * 60_000 + "'",
    ],
)
def test_what_no_rung_needs_is_refused_before_it_runs(text: str) -> None:
    assert ranks.forbidden(text)


def evidence(**changes: Any) -> Evidence:
    expected = {"p0": np.ones(8), "p1": np.ones(2)}
    facts = {
        "calls": [["all_reduce", 64, "exchange", "exchange"], ["all_reduce", 16, "exchange", ""]],
        "step_s": 0.01,
        "total_s": 0.002,
        "exposed_s": 0.002,
        "bytes": 1600,
        "steps": 20,
    }
    trial = Trial([facts | changes.get("facts", {})] * 2, [changes.get("arrays", expected)] * 2)
    return Evidence(2, [trial], expected, {})


def judged(name: str, given: Evidence) -> str:
    return RUNGS[name].judge(given)


def test_naive_ddp_is_judged_by_parameters_calls_and_bytes() -> None:
    assert "Calls in each step: 2" in judged("03.naive-ddp", evidence())
    wrong = {
        "not with one rank": {"arrays": {"p0": np.ones(8), "p1": np.full(2, 1.1)}},
        "1 parameters": {"arrays": {"p0": np.ones(8)}},
        "reduces 64 bytes": {"facts": {"calls": [["all_reduce", 64, "exchange", "exchange"]]}},
        "1 call, where 2": {"facts": {"calls": [["all_reduce", 80, "exchange", "exchange"]]}},
        "call broadcast": {"facts": {"calls": [["broadcast", 80, "exchange", "exchange"]]}},
    }
    wrong["1 calls; 2"] = wrong.pop("1 call, where 2")
    for hint, changes in wrong.items():
        with pytest.raises(WrongAnswerError, match=hint):
            judged("03.naive-ddp", evidence(**changes))
    apart = evidence()
    for other in (0.0, np.nan):
        arrays = [apart.expected, {"p0": np.full(8, other), "p1": np.ones(2)}]
        trial = replace(apart.trials[0], arrays=arrays)
        with pytest.raises(WrongAnswerError, match="Did they begin"):
            judged("03.naive-ddp", replace(apart, trials=[trial]))


def test_hooks_count_where_calls_stay_under_way_and_time_is_hidden() -> None:
    early = [["all_reduce", size, "backward", "exchange"] for size in (64, 16)]
    assert "25 %" in judged("03.hooks", evidence(facts={"calls": early, "exposed_s": 0.0015}))
    with pytest.raises(WrongAnswerError, match="Nothing is hidden"):
        judged("03.hooks", evidence(facts={"calls": early}))
    at_once = [["all_reduce", size, "backward", "backward"] for size in (64, 16)]
    with pytest.raises(WrongAnswerError, match="waited for at once"):
        judged("03.hooks", evidence(facts={"calls": at_once, "exposed_s": 0.001}))


def test_a_hang_is_told_with_the_line_at_which_each_rank_stands() -> None:
    stack = 'Thread 0x1 (most recent call first):\n  File "/x/torch/dist.py", line 9 in wait\n'
    stack += '  File "/h/ring.py", line 12 in all_reduce\n  File "/h/ring.py", line 30 in main\n'
    assert line_in(stack, "/h/ring.py") == (12, "all_reduce")
    ended = Ended([b"", b""], [stack, ""], [1, 1], None)
    with pytest.raises(WrongAnswerError, match=r"rank 0: line 12, in all_reduce; rank 1: it had"):
        ranks._trials(ended, {"file": "/h/ring.py"})


def test_questions_come_first_and_a_formula_after_three_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise WrongAnswerError("Wrong.")

    monkeypatch.setattr(ranks, "judge", refuse)
    file = tmp_path / "naive.py"
    file.write_text("")
    hints = []
    for _ in range(4):
        with pytest.raises(WrongAnswerError) as caught:
            lab.check_ranks("03.naive-ddp", file=file)
        hints.append(str(caught.value))
    assert [hint.endswith("?") for hint in hints] == [True, True, False, False]
    assert hints[0] != hints[1] and "Broadcast" in hints[2]


@pytest.mark.parametrize("line", ["def step(", "import os"])
def test_a_file_that_cannot_be_run_takes_no_hint(tmp_path: Path, line: str) -> None:
    file = tmp_path / "naive.py"
    file.write_text(line)
    for _ in range(3):
        with pytest.raises(WrongAnswerError, match=r"naive.py cannot be tried: line 1: [^?]*\.$"):
            lab.check_ranks("03.naive-ddp", file=file)
    assert not (tmp_path / ranks.TRIES).exists()


def test_a_rung_needs_a_known_name_a_file_and_ranks(tmp_path: Path) -> None:
    for name, size, hint in (
        ("03.naive", 2, "did you mean '03.naive-ddp'"),
        ("03.flat", 1, "2 to 8"),
        ("03.flat", 2, "no file"),
    ):
        with pytest.raises(lab.InputError, match=hint):
            lab.check_ranks(name, file=tmp_path / "none.py", world_size=size)


def test_lessons_are_copied_without_solutions_unless_they_are_asked_for(tmp_path: Path) -> None:
    copy_lessons(str(tmp_path / "public"))
    copy_lessons(tmp_path / "whole", solutions=True)
    texts = {
        name: "".join(
            path.read_text()
            for path in (tmp_path / name).rglob("*")
            if path.suffix in {".py", ".ipynb"}
        )
        for name in ("public", "whole")
    }
    assert "BEGIN SOLUTION" not in texts["public"] and "BEGIN SOLUTION" in texts["whole"]
    assert "Rank 0 sent" not in texts["public"]
    assert "dist.all_reduce(parameter.grad)" in texts["whole"]
    assert "dist.all_reduce(parameter.grad)" not in texts["public"]
