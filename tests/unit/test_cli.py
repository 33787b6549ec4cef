"""The command as its user meets it: what it answers to bad input, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from factories import record
from studies import StudyMaker

from lab import cli
from lab.config.study import Study
from lab.records.store import Store, write_record


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """Exit status, output and errors of `lab WORDS`."""
    monkeypatch.setattr(sys, "argv", ["lab", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    answer = capsys.readouterr()
    return int(ended.value.code or 0), answer.out, " ".join(answer.err.split())


BAD = {
    "no verb": (["rnu", "quickstart"], "No such command 'rnu'"),
    "no such study": (["run", "quikstart"], "did you mean 'quickstart'?"),
    "a folder without a study": (["plan", "."], "a study is a folder with a study.yaml"),
    "path that does not exist": (["run", "../../nowhere/else"], "no such study"),
    "no such option": (["run", "quickstart", "--clutser", "local"], "No such option"),
    "no such profile": (["run", "quickstart", "--cluster", "locla"], "did you mean 'local'?"),
    "study missing": (["run"], "Missing argument"),
    "no number of ranks": (
        ["predict", "quickstart", "--world-size", "8,many"],
        "'many' is not a number of ranks",
    ),
    "no number of students": (
        ["course", "budget", "--students", "many"],
        "'many' is not a number of students",
    ),
    "no such machine": (["predict", "quickstart", "--machine", "h10x8"], "unknown GPU"),
    "a machine without --best": (
        ["plan", "quickstart", "--machine", "h100x8"],
        "are only for --best",
    ),
    "no such benchmark": (["bench", "predcit"], "did you mean 'predict'?"),
    "no nanoGPT there": (["bench", "training", "--nanogpt", "nowhere.py"], "no such file"),
    "an option of another bench": (["bench", "losses", "--nanogpt", "x.py"], "with training"),
    "no study of this bench": (["bench", "losses", "quickstart"], "is not for losses"),
    "two studies": (["bench", "training", "quickstart", "precision"], "one study"),
    "a file for a study": (["run", "README.md"], "no such study"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_end_with_two_and_say_what_to_do(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    status, _, errors = run(capsys, monkeypatch, *arguments)
    assert status == 2 and message in errors and "Traceback" not in errors


def refused(
    make_study: StudyMaker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    **changes: object,
) -> str:
    """What `lab run` says to a study that it refuses; no job was started and no record made."""
    folder = make_study(**changes)
    status, _, errors = run(capsys, monkeypatch, "run", folder)
    assert status == 2 and not list(folder.glob("out/runs/*"))
    return errors


def text_at(path: str) -> dict[str, object]:
    model = {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16}
    return {"model": model, "data": {"kind": "text", "path": path}, "steps": 4, "warmup_steps": 1}


@pytest.mark.parametrize("path", ["/etc", "../../../etc/passwd", "corpus.txt/../../../.."])
def test_text_outside_the_study_is_refused(
    path: str,
    make_study: StudyMaker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "LAB_DATA_PATH" in refused(make_study, capsys, monkeypatch, base=text_at(path))


def test_text_that_is_not_there_is_refused(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "nothing.txt" in refused(make_study, capsys, monkeypatch, base=text_at("nothing.txt"))


def test_more_ranks_than_devices_are_refused(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = refused(
        make_study, capsys, monkeypatch, grid={"global_batch_size": [4096], "world_size": [1, 4096]}
    )
    assert "needs 4096 ranks" in errors


def test_unwritable_folder_is_refused(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study()
    (folder / "out").write_text("a file where the folder should be")
    for verb in ("run", "status", "plan", "report", "cancel", "audit", "predict", "generate"):
        status, _, errors = run(capsys, monkeypatch, verb, folder)
        assert status == 2 and "out: is not a folder, but the results" in errors, verb


@pytest.mark.skipif(not Path("/proc/self/ns").is_dir(), reason="only Linux has such a folder")
def test_a_folder_that_nobody_may_write_can_be_read(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study()
    (folder / "out").symlink_to("/proc/self/ns")  # not even root makes a file there
    for verb, expected in {"run": 2, "report": 2, "cancel": 2, "status": 0, "plan": 0}.items():
        status, _, errors = run(capsys, monkeypatch, verb, folder)
        assert status == expected and ("cannot be written" in errors) == bool(expected), verb


def test_records_of_another_cluster_are_not_mixed(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.load(make_study())
    write_record(record(study.runs[0], cluster="other"), Store(study.out).folder(study.tasks[0]))
    status, _, errors = run(capsys, monkeypatch, "run", study.folder)
    assert status == 2 and "were measured on other" in errors


def test_plan_and_status_tell_what_is_measured(
    make_study: StudyMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.load(make_study())
    write_record(record(study.runs[0]), Store(study.out).folder(study.tasks[0]))
    status, answer, _ = run(capsys, monkeypatch, "plan", study.folder, "--json")
    rows = json.loads(answer)
    assert status == 0 and [row["measured"] for row in rows] == ["1/1", "0/1"]
    parameters = 16 * 16 * 12 + 16 * 13 + 300 * 16 + 16 * 16 + 32
    assert rows[0]["state_mb"] == pytest.approx(parameters * 16 / 1e6, abs=0.06)
    status, answer, _ = run(capsys, monkeypatch, "status", study.folder, "--json")
    assert status == 0 and [row["state"] for row in json.loads(answer)] == ["completed", "waiting"]


def test_described_machines_are_predicted_and_planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("quickstart", "--machine", "h100x8", "--world-size")
    status, answer, _ = run(capsys, monkeypatch, "predict", *options, "8,4096", "--json")
    rows = json.loads(answer)["runs"]
    assert status == 0 and {row["world_size"] for row in rows} == {8, 4096}
    assert all(
        (row["step_s"] is None) == (row["world_size"] == 4096) == bool(row["missing"])
        for row in rows
    )
    status, answer, _ = run(capsys, monkeypatch, "predict", *options, "8")
    assert status == 0 and "datasheet" in answer and "2 predictions in" in answer
    status, answer, _ = run(capsys, monkeypatch, "plan", *options, "8", "--best")
    assert (
        status == 0
        and "searched: ddp, zero1, fsdp" in answer
        and "The second" in answer
        and "candidates in" in answer
    )


def test_doctor_finds_this_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, answer, _ = run(capsys, monkeypatch, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(answer)}
    assert status == 0 and checks["torch"]["present"] and checks["python"]["present"]


def test_help_names_every_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, answer, _ = run(capsys, monkeypatch, "--help")
    assert status == 0 and all(
        verb in answer for verb in ("run", "plan", "status", "report", "doctor")
    )


def test_the_command_is_installed() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "lab", "plan", "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2 and answer.stderr.startswith("lab: ")


def test_a_name_that_no_file_system_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["plan", "x" * 300], ["audit", "x" * 300 + ".csv"], ["init", "x" * 300]):
        status, _, errors = run(capsys, monkeypatch, *words)
        assert status in {1, 2} and "fault" not in errors


@pytest.mark.parametrize("after_s", [0.15, 0.3, 0.6, 1.0])
def test_ctrl_c_at_any_moment_is_one_sentence(make_study: StudyMaker, after_s: float) -> None:
    code = "import os, signal, sys, threading, runpy\n"
    code += f"threading.Timer({after_s}, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    code += "sys.argv[1:] = sys.argv[1:]\nrunpy.run_module('lab', run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-c", code, "plan", str(make_study())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    if ended.returncode:  # else it was faster
        assert ended.returncode == 130 and ended.stderr.startswith("lab: interrupted")


def test_ctrl_c_where_nothing_can_be_raised_comes_again() -> None:
    code = """
import time
import lab.cli
from lab.__main__ import main

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
