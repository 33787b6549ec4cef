"""Files of learners on real ranks: what is wrong is told, a hang with its lines, and nothing gets out."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab import machine
from lab.course import ranks
from lab.course.check import WrongAnswerError
from lab.course.ladder import RUNGS
from lab.course.release import LESSONS
from lab.course.solutions import without_solutions
from lab.launch import confined
from lab.worker import confine

pytestmark = pytest.mark.skipif(len(machine.cores()) < 2, reason="two ranks need two cores")

FILES = LESSONS / "studies" / "ladder"


def told(name: str, text: str, *, world_size: int = 2) -> str:
    """What is told of a wrong file."""
    path = FILES / RUNGS[name].file
    with pytest.raises(WrongAnswerError) as caught:
        ranks.judge(name, text, path=path, world_size=world_size)
    return str(caught.value)


def changed(name: str, right: str, wrong: str) -> str:
    text = (FILES / RUNGS[name].file).read_text()
    assert right in text
    return text.replace(right, wrong)


def test_ranks_that_wait_for_each_other_are_told_with_their_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "LIMIT_S", 5.0)
    right, wrong = "irecv(incoming, before).wait()", "irecv(incoming, before, tag=7).wait()"
    text = changed("02.ring-all-reduce", right, wrong)
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "tag=7" in row)
    message = told("02.ring-all-reduce", text)
    for rank in (0, 1):
        assert f"rank {rank}: line {line}, in all_reduce" in message


@pytest.mark.parametrize(
    ("right", "wrong", "hint"),
    [
        ("parameter.grad /= dist.get_world_size()", "pass", "not with one rank"),
        ("dist.broadcast(parameter.data, src=0)", "pass", "apart. Did they begin"),
        ("dist.all_reduce(parameter.grad)", "dist.all_reduce(grad)", r"naive.py, line 2\d: Name"),
    ],
    ids=["sum", "no broadcast", "error"],
)
def test_naive_ddp_that_trains_another_model_is_found(right: str, wrong: str, hint: str) -> None:
    assert re.search(hint, told("03.naive-ddp", changed("03.naive-ddp", right, wrong)))


def test_a_released_file_is_not_right_yet() -> None:
    text = without_solutions((FILES / "naive.py").read_text())
    assert "apart" in told("03.naive-ddp", text)


def test_hooks_that_wait_at_once_hide_nothing() -> None:
    right = "self.sent.append(dist.all_reduce(parameter.grad, async_op=True))"
    message = told("03.hooks", changed("03.hooks", right, "dist.all_reduce(parameter.grad)"))
    assert "waited for at once" in message


@pytest.mark.skipif(bool(confine.obstacle()), reason=confine.obstacle() or "confined here")
def test_what_passes_the_first_fence_is_held_by_the_second(tmp_path: Path) -> None:
    """Code that the reading of a file would refuse: no process, no file, no socket, no signal, no memory."""
    victim = tmp_path / "victim"
    victim.write_text("whole")
    text = f"""
import os, socket, subprocess
def told(act):
    try:
        act()
    except BaseException as error:
        return type(error).__name__
    return "done"
def all_reduce(tensor):
    acts = (
        os.fork, lambda: subprocess.run(["true"]), lambda: os.kill(os.getppid(), 9), socket.socket,
        lambda: open({str(victim)!r}, "w"), lambda: os.unlink({str(victim)!r}),
        lambda: os.rename({str(victim)!r}, {str(victim)!r} + "2"), lambda: os.mkdir("x"),
        lambda: bytearray(3 << 30),
    )
    raise ValueError(",".join(map(told, acts)))
"""
    with io.BytesIO() as stream:
        spec: dict[str, Any] = {"rank": 0, "world_size": 1, "folder": str(tmp_path), "limit_s": 20}
        spec |= {"task": "all_reduce", "steps": 1, "file": "/attack.py", "source": text}
        np.savez(stream, spec=np.array(json.dumps(spec | {"confined": True})), values=np.ones(4))
        ended = confined.run_ranks([stream.getvalue()], folder=tmp_path, limit_s=20)
    with np.load(io.BytesIO(ended.archives[0])) as left:
        error = json.loads(str(left["error"]))
    assert error["message"].split(",") == ["PermissionError"] * 8 + ["MemoryError"]
    assert victim.read_text() == "whole" and not (tmp_path / "victim2").exists()


@pytest.mark.skipif(bool(confine.obstacle()), reason=confine.obstacle() or "confined here")
def test_a_rank_can_read_no_input_but_its_own(tmp_path: Path) -> None:
    text = """
import os
def all_reduce(tensor):
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    raise ValueError(",".join(os.path.basename(link) for link in links if ".input" in link))
"""
    inputs = []
    for rank in range(2):
        spec: dict[str, Any] = {"rank": rank, "world_size": 2, "folder": str(tmp_path)}
        spec |= {"limit_s": 20, "task": "all_reduce", "steps": 1, "file": "/reads.py"}
        spec |= {"source": text, "confined": True}
        with io.BytesIO() as stream:
            np.savez(stream, spec=np.array(json.dumps(spec)), values=np.ones(4))
            inputs.append(stream.getvalue())
    ended = confined.run_ranks(inputs, folder=tmp_path, limit_s=20)
    for rank, archive in enumerate(ended.archives):
        with np.load(io.BytesIO(archive)) as left:
            message = json.loads(str(left["error"]))["message"]
        assert message == f"rank{rank}.input (deleted)"
    assert not list(tmp_path.glob("*.input"))
