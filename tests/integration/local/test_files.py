"""Files that several processes want: built once, and whole whenever a writer is killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.files import whole_folder
from lab.worker.data.corpora import tokenize

DOCUMENTS = ["x = 1\n    y = 2\n" * 50] * 5


def _build_and_count(results: Any) -> None:
    built = 0

    def count(phase: str, step: int, steps: int) -> None:
        nonlocal built
        built += steps == len(DOCUMENTS)

    tokens = tokenize(DOCUMENTS, vocab_size=320, progress=count)
    results.put((tokens.sha256, built))


def test_processes_that_want_the_same_build_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_build_and_count, args=(results,)) for _ in range(2)]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    assert len({digest for digest, _ in outcomes}) == 1
    assert sum(built for _, built in outcomes) == 1


def test_writer_killed_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from lab.files import write_atomically\n"
        "path = Path(sys.argv[1])\n"
        "for n in range(10**9): write_atomically(path, b'%09d' % n * 20000)"
    )
    for pause in (0.0, 0.013, 0.05):
        path = tmp_path / f"{pause}"
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        while not path.exists():
            time.sleep(0.01)
        time.sleep(pause)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        content = path.read_bytes()
        assert len(content) == 180_000 and content == content[:9] * 20000


def test_a_folder_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "of" / "numbers"
    for number in (1, 2):
        with whole_folder(path) as building:
            (building / "number").write_text(str(number))
            assert [one.read_text() for one in path.glob("*")] == ["1"] * (number - 1)
    with pytest.raises(ZeroDivisionError), whole_folder(path) as building:
        (building / "number").write_text(str(1 / 0))
    assert (path / "number").read_text() == "2" and building.exists()
    with whole_folder(path, durable=False):  # which also removes what others left unfinished
        pass
    assert not any(path.iterdir()) and [*path.parent.iterdir()] == [path]
