"""The command as its user meets it: what it answers to bad input, and its exit status."""

from __future__ import annotations

import errno
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import typer
from factories import calibration, record
from jinja2 import TemplateNotFound
from studies import StudyMaker

import lab
from lab import cli
from lab.config.study import Study
from lab.course.release import LESSONS
from lab.errors import LabError
from lab.launch.launcher import Jobs
from lab.perfmodel.calibration import calibration_path, write_calibration
from lab.records.schema import Failure
from lab.records.store import Store, write_record
from lab.report.build import Report

Command = Callable[..., tuple[int, str, str]]
INSTALLED = Path(sys.executable).with_name("lab")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs `lab WORDS`; returns exit status, output and errors."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lab", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        answer = capsys.readouterr()
        return int(ended.value.code or 0), answer.out, " ".join(answer.err.split())

    return run


BAD = {
    "no verb": (["rnu", "quickstart"], "No such command 'rnu'"),
    "no such study": (["run", "quikstart"], "did you mean 'quickstart'?"),
    "a folder without a study": (["plan", "."], "a study is a folder with a study.yaml"),
    "path that does not exist": (["run", "../../nowhere/else"], "no such study"),
    "path of a lesson's study": (
        ["plan", str(LESSONS / "studies" / "baselin")],
        f"did you mean '{LESSONS / 'studies' / 'baseline'}'?",
    ),
    "a quick table": (["report", "a.csv", "--quick"], "--quick: is only for studies"),
    "an audit of a quick table": (["audit", "a.csv", "--quick"], "--quick: is only for studies"),
    "all reports under one title": (["report", "--all", "--title", "A"], "only for one report"),
    "parts of a kept report": (
        ["report", "quickstart", "--keep", "--artifacts"],
        "--artifacts: is not kept",
    ),
    "parts of all reports": (["report", "--all", "--artifacts"], "only for one report"),
    "no such option": (["run", "quickstart", "--clutser", "local"], "No such option"),
    "an option of a script": (["measure", "train.py", "--lr", "1"], "follow `--`: lab measure"),
    "no such profile": (["run", "quickstart", "--cluster", "locla"], "did you mean 'local'?"),
    "study missing": (["run"], "Missing argument"),
    "no number of ranks": (
        ["predict", "quickstart", "--world-size", "8,many"],
        "'many' is not a number of ranks",
    ),
    "a number of ranks that measures nothing": (
        ["measure", "--ranks", "0", "--", "train.py"],
        "--ranks: '0' is not a number of ranks; such as 1,2,4",
    ),
    "no number of students": (
        ["course", "budget", "--students", "many"],
        "'many' is not a number of students",
    ),
    "no such machine": (["predict", "quickstart", "--machine", "h10x8"], "unknown GPU"),
    "a machine without --best": (
        ["plan", "quickstart", "--machine", "h100x8"],
        "--machine: is only for --best; add --best",
    ),
    "no such benchmark": (["bench", "predcit"], "Did you mean 'predict'?"),
    "no nanoGPT there": (["bench", "training", "--nanogpt", "nowhere.py"], "no such file"),
    "an option of another bench": (["bench", "losses", "--nanogpt", "x.py"], "No such option"),
    "nothing to shorten": (["bench", "report", "--quick"], "See `lab bench report --help`"),
    "ranks of no script": (["bench", "overhead", "--ranks", "2"], "give --script COMMAND"),
    "no study of this bench": (["bench", "losses", "quickstart"], "extra argument"),
    "two studies": (["bench", "training", "quickstart", "precision"], "extra argument"),
    "an assumption on a study": (
        ["predict", "quickstart", "--assume", "gpu=h100"],
        "use it with --explain",
    ),
    "a table without --explain": (
        ["predict", "../docs/tables/mpt_a100_40gb.csv"],
        "is a file, not a study; for a table of layouts add --explain",
    ),
    "an assumption without a value": (
        ["predict", "results.csv", "--explain", "--assume", "h100"],
        "'h100' is not NAME=VALUE",
    ),
    "an unknown assumption": (
        ["bench", "public", "../docs/tables/mpt_a100_40gb.csv", "--assume", "leyers=24"],
        "did you mean 'layers'?",
    ),
    "a number beyond the tables": (
        ["predict", "../docs/tables/mpt_a100_40gb.csv", "--explain", "--table", "2"],
        "mpt_a100_40gb.csv: table: holds 1 table of results, not 2; leave it out",
    ),
    "a number of no table": (["audit", "quickstart", "--table", "2"], "is only for tables"),
    "a column of no table": (
        ["audit", "quickstart", "--column", "time=s"],
        "--column: is only for tables",
    ),
    "a folder for a table": (["predict", ".", "--explain"], "not a table of layouts"),
    "a study for a table": (
        ["predict", "quickstart", "--explain"],
        "is not a table of layouts; name the file of one, or leave out --explain",
    ),
    "ranks for a table of layouts": (
        ["predict", "table.csv", "--explain", "--world-size", "8"],
        "--world-size: is only for studies",
    ),
    "a folder without a name": (["init", ""], "is empty; give the path of a folder"),
    "a name that no disk takes": (["init", 300 * "n"], "File name too long; choose a shorter name"),
    "a file for a study": (
        ["run", "unit/test_cli.py"],
        "is a file, not a study; name a folder that",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_arguments_end_with_two_and_say_what_to_do(
    arguments: list[str], message: str, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    status, _, errors = run(*arguments)
    assert status == 2 and message in errors and "Traceback" not in errors


def test_there_may_be_no_job_to_cancel(make_study: StudyMaker, run: Command) -> None:
    assert run("cancel", make_study()) == (0, "no job of this study waits or runs\n", "")


def test_an_audit_of_nothing_finds_the_records_of_a_kept_report(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study()
    monkeypatch.chdir(folder.parent)
    (folder / "kept" / "out" / "runs").mkdir(parents=True)
    for verb in ("audit", "compare"):
        _, _, errors = run(verb, folder)
        assert f"copy {folder.name}/kept/out to {folder.name}/out" in errors


def test_an_audit_of_nothing_says_what_to_do(make_study: StudyMaker, run: Command) -> None:
    folder = make_study(quick={"base": {"steps": 3}})
    status, _, errors = run("audit", folder)
    assert status == 2 and "holds no completed record; `lab run " in errors
    for quick, advice in ((True, "add --quick"), (False, "leave out --quick")):
        study = Study.load(folder, quick=quick)
        path = Store(study.out).folder(study.tasks[0])
        write_record(record(study.tasks[0].run), path)
        assert run("audit", folder, *["--quick"] * quick)[0] == 1  # one repeat
        for verb in ("audit", "report"):  # whose page would replace that of the other form
            status, _, errors = run(verb, folder, *["--quick"] * (not quick))
            assert status == 2 and advice in errors and not (study.out / "report.html").exists()
        shutil.rmtree(path)


@pytest.mark.parametrize("keep", [False, True])
def test_studies_that_cannot_be_read_are_named_and_the_others_reported(
    make_study: StudyMaker, run: Command, keep: bool
) -> None:
    folders = make_study("one"), make_study("two", title="Another"), make_study("three")
    reports = folders[0].parent
    (folders[0] / "study.yaml").write_text("title: [")
    (folders[2] / "study.yaml").write_bytes(b"title: \xff")
    arguments = ["report", "--all", reports, *["--keep"] * keep]
    status, _, errors = run(*arguments)
    assert status == 2 and "one/study.yaml: " in errors and "three/study.yaml: " in errors
    readme = (reports / "README.md").read_text("utf-8")
    assert "two/study.yaml" in readme and "one/study.yaml" not in readme
    assert len(json.loads(run(*arguments, "--json")[1])["errors"]) == 2
    (folders[1] / "study.yaml").write_text("title: [")
    assert run(*arguments)[0] == 2 and (reports / "README.md").read_text("utf-8") == readme


def refused(make_study: StudyMaker, run: Command, **changes: object) -> str:
    """What `lab run` says to a study that it refuses; no job was started and no record made."""
    folder = make_study(**changes)
    status, _, errors = run("run", folder)
    assert status == 2 and not list(folder.glob("out/runs/*"))
    return errors


def text_at(path: str) -> dict[str, object]:
    model = {"kind": "gpt", "layers": 1, "heads": 1, "width": 16, "block_size": 16}
    return {"model": model, "data": {"kind": "text", "path": path}, "steps": 4, "warmup_steps": 1}


@pytest.mark.parametrize("path", ["/etc", "../../../etc/passwd", "corpus.txt/../../../.."])
def test_text_outside_the_study_is_refused(path: str, make_study: StudyMaker, run: Command) -> None:
    assert "LAB_DATA_PATH" in refused(make_study, run, base=text_at(path))


def test_text_that_is_not_there_is_refused(make_study: StudyMaker, run: Command) -> None:
    assert "nothing.txt" in refused(make_study, run, base=text_at("nothing.txt"))


def test_more_ranks_than_devices_are_refused(make_study: StudyMaker, run: Command) -> None:
    errors = refused(make_study, run, grid={"global_batch_size": [4096], "world_size": [1, 4096]})
    assert "needs 4096 ranks" in errors


@pytest.mark.parametrize("date", ["yesterday", "-1", "1e9", "²", "9" * 30])
def test_a_date_that_no_report_can_have_is_refused_before_a_job(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch, date: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
    folder = make_study()
    script = folder / "train.py"
    script.touch()
    for words in (["run", folder], ["plan", folder], ["report", folder], ["measure", "--", script]):
        status, _, errors = run(*words)
        assert status == 2 and f"SOURCE_DATE_EPOCH: {date!r} is not a number of" in errors
    assert not (folder / "out" / "runs").exists()


def test_unwritable_folder_is_refused(make_study: StudyMaker, run: Command) -> None:
    folder = make_study()
    (folder / "out").write_text("a file where the folder should be")
    for verb in ("run", "status", "plan", "report", "cancel", "audit", "predict", "generate"):
        status, _, errors = run(verb, folder)
        assert status == 2 and "out: is not a folder, but the results" in errors, verb


@pytest.mark.skipif(not Path("/proc/self/ns").is_dir(), reason="only Linux has such a folder")
def test_a_folder_that_nobody_may_write_can_be_read(make_study: StudyMaker, run: Command) -> None:
    folder = make_study()
    (folder / "out").symlink_to("/proc/self/ns")  # not even root makes a file there
    for verb, expected in {"run": 2, "report": 2, "cancel": 2, "status": 0, "plan": 0}.items():
        status, _, errors = run(verb, folder)
        assert status == expected and ("cannot be written" in errors) == bool(expected), verb


def test_records_of_another_cluster_are_not_mixed(make_study: StudyMaker, run: Command) -> None:
    study = Study.load(make_study())
    write_record(record(study.runs[0], cluster="other"), Store(study.out).folder(study.tasks[0]))
    status, _, errors = run("run", study.folder)
    assert status == 2 and "were measured on other" in errors


def measured(make_study: StudyMaker) -> Study:
    """A study of which each task has a record."""
    study = Study.load(make_study())
    for task in study.tasks:
        write_record(record(task.run), Store(study.out).folder(task))
    return study


def test_a_run_without_a_record_is_named_and_is_a_failure(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = measured(make_study)
    wait = Jobs.wait
    monkeypatch.setattr(Jobs, "wait", lambda jobs, progress: wait(jobs, progress=progress)[1:])
    made = Report(*(study.folder / f"report.{kind}" for kind in ("ipynb", "html", "pdf")))
    monkeypatch.setattr(lab, "report", lambda *_, **__: made)
    status, _, errors = run("run", study.folder)
    assert status == 1 and f"{study.tasks[0].label}: no record" in errors


def test_a_report_that_fails_loses_no_record_and_is_told_how_to_be_made(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = measured(make_study)
    done = f"{len(study.tasks)} of {len(study.tasks)} runs completed; all is kept"
    for error, told in ((LabError("no template"), True), (KeyboardInterrupt(), False)):
        monkeypatch.setattr(lab, "report", Mock(side_effect=error))
        _, _, errors = run("run", study.folder)
        assert (f"lab: {done}, and `lab report {study.folder}` makes the report" in errors) is told
        assert ("lab: no template" if told else "lab: interrupted; the same command") in errors


def test_a_report_that_fails_hides_no_failure_of_a_run(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = measured(make_study)
    wait = Jobs.wait
    monkeypatch.setattr(Jobs, "wait", lambda jobs, progress: wait(jobs, progress=progress)[1:])
    monkeypatch.setattr(lab, "report", Mock(side_effect=LabError("no template")))
    _, _, errors = run("run", study.folder)
    assert f"lab: {study.tasks[0].label}: no record" in errors and "lab: no template" in errors


def test_a_cause_that_ended_several_runs_is_told_once(make_study: StudyMaker) -> None:
    first, second, *_ = Study.load(make_study()).tasks
    ended = [(first, "failed: no GPU"), (second, "failed: no GPU"), (second, "no record")]
    assert list(cli._by_cause(ended)) == [
        f"{first.label} and 1 other: failed: no GPU",
        f"{second.label}: no record",
    ]


def test_plan_and_status_tell_what_is_measured(make_study: StudyMaker, run: Command) -> None:
    study = Study.load(make_study())
    write_record(record(study.runs[0]), Store(study.out).folder(study.tasks[0]))
    status, answer, _ = run("plan", study.folder, "--json")
    rows = json.loads(answer)
    assert status == 0 and [row["measured"] for row in rows] == ["1/1", "0/1"]
    parameters = 16 * 16 * 12 + 16 * 13 + 300 * 16 + 16 * 16 + 32
    assert rows[0]["state_mb"] == pytest.approx(parameters * 16 / 1e6, abs=0.06)
    status, answer, _ = run("status", study.folder, "--json")
    assert status == 0 and [row["state"] for row in json.loads(answer)] == ["completed", "waiting"]
    _, answer, _ = run("status", study.folder)
    assert (
        f"no job of `lab run` is under way: `{study.command('run')}` measures what is missing"
        in answer
    )


def test_status_cuts_a_long_cause_and_its_json_does_not(
    make_study: StudyMaker, run: Command
) -> None:
    study = Study.load(make_study())
    error = Failure(type="RuntimeError", message="so " * 2000, traceback="Traceback: ...")
    failed = record(study.runs[0], status="failed", error=error)
    write_record(failed, Store(study.out).folder(study.tasks[0]))
    _, table, _ = run("status", study.folder)
    assert "[...]" in table and table.count("so") < 250  # however narrow the terminal
    _, answer, _ = run("status", study.folder, "--json")
    assert json.loads(answer)[0]["reason"].startswith("RuntimeError: " + "so " * 1999)


def test_a_librarys_error_is_not_taken_for_one_of_a_file(
    run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise TemplateNotFound("base.j2")  # an OSError without a number

    monkeypatch.setattr(lab, "doctor", fail)
    status, _, errors = run("doctor")
    assert status == 1 and "in the lab itself: TemplateNotFound: base.j2 lab: traceback" in errors


def test_the_traceback_of_an_error_that_quotes_undecodable_bytes_is_written() -> None:
    try:
        raise ValueError("x\udce9")
    except ValueError:
        path = cli._write_traceback()
    assert r"ValueError: x\udce9" in path.read_text()
    path.unlink()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("can't start new thread"), "processes or threads can be started: raise"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "raise `ulimit -u`"),
        (OSError(errno.EMFILE, "Too many open files", "x.csv"), "opened: raise `ulimit -n`"),
    ],
)
def test_a_limit_of_the_shell_is_named(
    run: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr(lab, "doctor", Mock(side_effect=error))
    status, _, errors = run("doctor")
    assert status == 1 and errors.startswith("lab: no more ") and said in errors


def test_output_onto_a_full_disk_is_one_error() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "lab", "status", "quickstart"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "lab: output: No space left on device\n")


def test_the_command_ends_without_a_last_search_for_garbage() -> None:
    code = "import atexit, gc\natexit.register(lambda: print(gc.get_freeze_count()))\n"
    command = [sys.executable, "-c", f"{code}from lab.__main__ import main; main()", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout.splitlines()[-1]) > 1000


def test_the_version_is_printed(run: Command) -> None:
    assert run("--version") == (0, f"scaling-lab {lab.__version__}\n", "")


def test_described_machines_are_predicted_and_planned(run: Command) -> None:
    options = ("quickstart", "--machine", "h100x8", "--world-size")
    status, answer, _ = run("predict", *options, "8,4096", "--json")
    rows = json.loads(answer)["runs"]
    assert status == 0 and {row["world_size"] for row in rows} == {8, 4096}
    assert all(
        (row["step_s"] is None) == (row["world_size"] == 4096) == bool(row["missing"])
        for row in rows
    )
    assert "2 predictions in" in run("predict", *options, "8,4096")[1]  # not those left out
    status, answer, _ = run("predict", *options, "8")
    assert status == 0 and "datasheet" in answer and "2 predictions in" in answer
    status, answer, _ = run("plan", *options, "8", "--best")
    assert (
        status == 0
        and "searched: ddp, zero1, fsdp" in answer
        and "The second" in answer
        and "candidates in" in answer
    )


def test_doctor_finds_this_environment(run: Command) -> None:
    status, answer, _ = run("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(answer)}
    assert status == 0 and checks["torch"]["present"] and checks["python"]["present"]
    # What is present needs no advice.
    assert checks["python"]["remedy"] and checks["python"]["remedy"] not in run("doctor")[1]


def test_help_names_every_verb(run: Command) -> None:
    status, answer, _ = run("--help")
    assert status == 0 and answer.startswith("Usage: lab [OPTIONS]")
    assert all(verb in answer for verb in ("run", "plan", "status", "report", "doctor"))


@pytest.mark.parametrize("words", [[], ["course"]], ids=["lab", "lab course"])
def test_without_a_verb_the_help_is_shown_as_it_is(run: Command, words: list[str]) -> None:
    _, known, _ = run(*words, "--help")
    status, _, answer = run(*words)
    assert status == 2 and answer == " ".join(known.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["quikstart"], "No such command 'quikstart'. See `lab --help`."),
        (["course", "lesons"], "Did you mean 'lessons'? See `lab course --help`."),
        (["audit"], "Missing argument 'STUDY_OR_TABLE'. See `lab audit --help`."),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_answered_with_where_to_read_on(
    run: Command, words: list[str], text: str
) -> None:
    status, _, answer = run(*words)
    assert status == 2 and answer.strip().endswith(text) and answer.startswith("lab: ")


def verbs(group: Any, *above: str) -> Iterator[tuple[list[str], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from verbs(command, *above, name)
        else:
            yield [*above, name], command


@pytest.mark.parametrize(
    "words", [words for words, _ in verbs(typer.main.get_command(cli.app))], ids=" ".join
)
def test_a_usage_line_can_be_read(run: Command, words: list[str]) -> None:
    _, answer, _ = run(*words, "--help")
    usage, *_ = answer.strip().split("\n\n")
    assert usage.startswith("Usage: lab ") and "\n" not in usage
    assert not any(doubled in usage for doubled in ("[[", "...]", "...}"))


def test_a_current_folder_that_is_gone_is_named(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    status, _, errors = run("init", tmp_path / "mine")
    assert status == 1 and "the current folder: No such file or directory" in errors


def test_the_next_commands_after_init_can_be_typed(tmp_path: Path, run: Command) -> None:
    _, output, _ = run("init", tmp_path / "my study")
    _, commands = output.splitlines()[-1].split(": ")
    assert [shlex.split(one) for one in commands.split(", then ")] == [
        ["lab", verb, str(tmp_path / "my study")] for verb in ("plan", "run")
    ]
    file = (tmp_path / "my study" / "study.yaml").read_text()
    assert f"`lab run '{tmp_path / 'my study'}'`" in file


def test_the_status_of_a_detached_run_can_be_asked_for(
    make_study: StudyMaker, run: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lab, "detach", lambda *_, **__: 7)
    _, output, _ = run("run", make_study(quick={"repeats": 2}), "--quick", "--detach")
    words = shlex.split(output.split("`")[1])
    status, answer, _ = run(*words[1:], "--json")
    assert status == 0 and len(json.loads(answer)) == 4


def test_a_name_that_no_file_system_takes(run: Command) -> None:
    for words in (["plan", "x" * 300], ["audit", "x" * 300 + ".csv"], ["init", "x" * 300]):
        status, _, errors = run(*words)
        assert status in {1, 2} and "fault" not in errors


def test_ctrl_c_while_a_class_is_constructed_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python 3.11 makes a RuntimeError of it."""

    class Attribute:
        def __set_name__(self, owner: type, name: str) -> None:
            raise KeyboardInterrupt

    def owner(**_: object) -> None:
        type("Owner", (), {"attribute": Attribute()})

    def validator(**_: object) -> None:
        """What pydantic's core makes of it."""
        raise ValueError('Error building "model" validator:\n  KeyboardInterrupt: ')

    for command in (owner, validator):
        monkeypatch.setattr(cli, "_command", lambda command=command: command)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 130
        assert capsys.readouterr().err == "lab: interrupted; the same command resumes from there\n"


def test_more_ranks_are_predicted_next_once_links_are_calibrated(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm" / "calibration").mkdir(parents=True)
    (tmp_path / "slurm" / "two.yaml").write_text("executor: local\ndevice: cpu\n")
    study = Study.load(make_study("mine"))
    records = [record(one, cluster="two") for one in study.runs]
    [_, calibrate, _] = cli._next_steps(study, records)
    assert " calibrate reports/mine --cluster two " in calibrate
    write_calibration(calibration(2), calibration_path("two"))
    [_, predict, _] = cli._next_steps(study, records)
    assert " predict reports/mine --cluster two --world-size 8 " in predict


def test_a_calibration_for_a_study_leaves_out_ranks_that_the_cluster_lacks(
    make_study: StudyMaker, run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two.yaml").write_text(
        "executor: slurm\nnodes: 1\ndevice: cpu\ncores_per_node: 2\n"
    )
    folder = make_study("mine", grid={"world_size": [1, 2, 64], "global_batch_size": [64]})
    monkeypatch.setattr(lab, "calibrate", calibrated := Mock(side_effect=LabError("not now")))
    _, _, errors = run("calibrate", folder, "--cluster", tmp_path / "two.yaml")
    assert "not now" in errors
    assert calibrated.call_args.kwargs["world_sizes"] == {1, 2}


def test_a_benchmark_shows_only_its_own_options(run: Command) -> None:
    (_, losses, _), (_, training, _) = (
        run("bench", name, "--help") for name in ("losses", "training")
    )
    assert "--nanogpt" in training and "--nanogpt" not in losses and "--quick" in losses
