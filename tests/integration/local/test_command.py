"""The command in a process of its own: where it starts, Ctrl-C, and output that goes nowhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from studies import StudyMaker

from lab.config.study import Study
from lab.terminal import NARROWEST, WIDE

INSTALLED = Path(sys.executable).with_name("lab")


def test_the_command_is_installed() -> None:
    answer = subprocess.run(
        [INSTALLED, "plan", "nowhere"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2 and answer.stderr.startswith("lab: ")


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    for name in ("lab", "random"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    link = tmp_path / "link"
    link.symlink_to(INSTALLED)
    answer = subprocess.run(
        [link, "plan", "nowhere"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2 and answer.stderr.startswith("lab: nowhere")


@pytest.mark.parametrize("after_s", [0.02, 0.04, 0.08, 0.15, 0.3, 0.6])
def test_ctrl_c_at_any_moment_is_one_sentence(make_study: StudyMaker, after_s: float) -> None:
    process = subprocess.Popen(
        [INSTALLED, "plan", make_study()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after_s)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate()
    if process.returncode == -signal.SIGINT:
        assert errors == ""  # it came before the command had begun, which a busy machine delays
    elif process.returncode:  # else it was faster
        assert process.returncode == 130 and errors.startswith("lab: interrupted")
        assert "Traceback" not in errors


def test_ctrl_c_in_code_from_a_string_ends_with_the_documented_status() -> None:
    code = """
import os
import signal
import lab.cli
from lab.__main__ import main

def run():
    exec("os.kill(os.getpid(), signal.SIGINT)\\nfor i in range(10**9): pass", {"os": os, "signal": signal})

lab.cli.main = run
main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "lab: interrupted\n")


def test_ctrl_c_where_nothing_can_be_raised_comes_again() -> None:
    code = """
import threading
import time
import lab.cli
from lab.__main__ import main

start = threading.Thread.start

def start_slowly(thread):  # as on a busy machine
    start(thread)
    time.sleep(0.3)

threading.Thread.start = start_slowly

class Dropped:
    def __del__(self):
        raise KeyboardInterrupt

def run():
    Dropped()
    time.sleep(60)

lab.cli.main = run
main()
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "lab: interrupted\n")


def test_an_encoding_without_a_letter_ends_no_command() -> None:
    code = "from lab import terminal; terminal.answer(False, None, '± µs')"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert ended.stdout == b"\\xb1 \\xb5s\n"


@pytest.mark.parametrize("columns", ["0", "1", "12"])
def test_a_narrow_terminal_loses_nothing(columns: str) -> None:
    rows = dict.fromkeys(("run", "state", "seconds", "reason"), "shown")
    table = f"from lab import terminal; terminal.answer(False, None, terminal.table_of([{rows}]))"
    command = [sys.executable, "-c", f"{table}; from lab.__main__ import main; main()"]
    ended = subprocess.run(
        [*command, "plan", "no-such-study"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == [*rows, *rows.values()]
    assert ended.returncode == 2 and "no such study" in ended.stderr


@pytest.mark.parametrize(("columns", "width"), [("0", WIDE), ("12", NARROWEST), ("120", 120)])
def test_no_columns_are_an_unknown_number_of_them(columns: str, width: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from lab import terminal; print(terminal.console.width)"],
        env={**os.environ, "COLUMNS": columns},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(ended.stdout) == width


def test_a_locale_that_cannot_tell_a_folders_name_is_blamed(make_study: StudyMaker) -> None:
    folder = make_study()
    folder = folder.rename(folder.with_name("größer"))
    ended = subprocess.run(
        [sys.executable, "-m", "lab", "plan", folder],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2 and "set PYTHONUTF8=1, or rename the folder" in ended.stderr


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [(">&-", 0, ""), ("> /dev/full", 1, "lab: output: No space left on device\n")],
)
def test_output_that_goes_nowhere(
    make_study: StudyMaker, redirection: str, status: int, message: str
) -> None:
    command = f"{sys.executable} -m lab status {make_study()} {redirection}"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (status, message)


@pytest.mark.parametrize("module", ["lab.launch.job", "lab.rank"])
def test_kept_scripts_still_start_a_rank(module: str, make_study: StudyMaker) -> None:
    study = Study.load(make_study())
    task = [str(study.folder), study.runs[0].id, "0", "--cluster", "slurm"]
    environment = {name: value for name, value in os.environ.items() if name != "SLURM_PROCID"}
    command = [sys.executable, "-m", module, *task]
    outside = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert outside.returncode == 1
    assert (
        outside.stderr == "lab: this is one rank of a job: start it with srun, or use `lab run`\n"
    )
    environment |= {"SLURM_PROCID": "0"}
    command[4] = "0000000000"
    inside = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert inside.returncode == 2 and "0000000000" in inside.stderr
