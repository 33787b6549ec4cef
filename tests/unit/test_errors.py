"""What an error says in one line, in a notebook, and of an argument of another type."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pandas as pd
import pytest

import lab
from lab.errors import InputError, LabError, Problem, combined, first_line, nearest


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (RuntimeError("\n no kernel\nraised at line 7\n"), "no kernel"),
        (NotImplementedError(), "NotImplementedError"),
    ],
)
def test_an_error_is_told_by_its_first_line_or_its_type(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_ipython_shows_an_error_for_people_without_the_labs_own_lines() -> None:
    code = "import lab; lab.Study.load('quikstart')"
    command = [sys.executable, "-m", "IPython", "--colors=nocolor", "--quick", "-c", code]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 1 and "did you mean 'quickstart'?" in shown.stdout
    assert shown.stdout.startswith("InputError: quikstart") and shown.stdout.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "choice"),
    [("lr", "learning_rate"), ("DDP", "ddp"), ("mbs", "micro_batch_size"), ("Adam", "AdamW")],
)
def test_a_choice_is_known_by_its_initials_and_in_any_case(word: str, choice: str) -> None:
    choices = ["AdamW", "ddp", "fsdp", "learning_rate", "lr_warmup_steps", "micro_batch_size"]
    assert nearest(word, choices) == f"did you mean {choice!r}?"


def test_of_choices_that_begin_with_the_word_none_is_preferred() -> None:
    models = ["gpt-nano", "gpt2-small", "gpt2-xl"]
    assert nearest("GPT2", models) == "choose one of: gpt2-small, gpt2-xl"
    assert nearest("gpt2-x", models) == "did you mean 'gpt2-xl'?"


STUDY = "give a Study, its name or its folder"
FOLDERS = "give a list of folders, such as ['handed-in']"
FOLDER = "give the path of a folder"
RECORDS = "give a study, its name or its folder, or a list of records"
TABLE = pd.DataFrame({"ranks": [1, 2]})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lab.plan(None), f"study: cannot be of type NoneType; {STUDY}"),
        (lambda: lab.report(["quickstart"]), f"study: cannot be of type list; {STUDY}"),
        (lambda: lab.Cluster.load(2), "cluster: cannot be of type int; give a profile by its name"),
        (lambda: lab.table(TABLE), f"source[0]: cannot be of type str; {RECORDS}"),
        (lambda: lab.figures.speedup(None), f"source: cannot be of type NoneType; {RECORDS}"),
        (lambda: lab.audit(3), "source: cannot be of type int; give a study, a table or a list"),
        (lambda: lab.compare("quickstart"), "studies: cannot be of type str; give a list of"),
        (lambda: lab.predict("quickstart", world_sizes=4), "world_sizes: cannot be of type int"),
        (lambda: lab.calibrate("cpu", world_sizes=["2"]), "world_sizes[0]: cannot be of type str"),
        (
            lambda: lab.launch("quickstart", "cpu", tasks=lab.Study.load("quickstart").runs),
            "tasks[0]: cannot be of type Run; give some of study.tasks",
        ),
        (lambda: lab.report_table(TABLE), "table: cannot be of type DataFrame; give the path"),
        (lambda: lab.records_from([1]), "table: cannot be of type list; give a DataFrame"),
        (lambda: lab.fit("steps.csv"), "rows: cannot be of type str; give a DataFrame"),
        (lambda: lab.fit_layouts([]), "table: cannot be of type list; give a DataFrame or a file"),
        (lambda: lab.fit_layouts(TABLE, assume="h100"), "assume: cannot be of type str; give val"),
        (lambda: lab.records_from(TABLE, columns=["ranks"]), "columns: cannot be of type list"),
        (lambda: lab.audit(TABLE, columns=["ranks"]), "columns: cannot be of type list; give col"),
        (lambda: lab.records_from(TABLE, baseline="2"), "baseline: cannot be of type str; give a"),
        (lambda: lab.records_from(TABLE, scaling="x"), "scaling: cannot be 'x'; choose one of: a"),
        (
            lambda: lab.figures.speedup(TABLE, scaling="stron"),
            "scaling: cannot be 'stron'; did you",
        ),
        (lambda: lab.figures.speedup(TABLE, baseline=2), "baseline: cannot be of type int; give"),
        (lambda: lab.figures.speedup(TABLE, ax=3), "ax: cannot be of type int; give matplotlib"),
        (lambda: lab.script_study("train.py"), "command: cannot be of type str; give a list"),
        (lambda: lab.script_study(["train.py"], ranks=[]), "ranks: is empty; give whole numbers"),
        (lambda: lab.collect("handed-in"), f"sources: cannot be of type str; {FOLDERS}"),
        (lambda: lab.collect([]), f"sources: is empty; {FOLDERS}"),
        (lambda: lab.grade([]), f"submissions: cannot be of type list; {FOLDER}"),
        (lambda: lab.class_results(None), f"submissions: cannot be of type NoneType; {FOLDER}"),
        (lambda: lab.collect(["in"], into=3), f"into: cannot be of type int; {FOLDER}"),
        (lambda: lab.copy_lessons(b"x"), f"folder: cannot be of type bytes; {FOLDER}"),
        (lambda: lab.new_study(None), f"folder: cannot be of type NoneType; {FOLDER}"),
        (lambda: lab.new_study("new", like=[]), "like: cannot be of type list; give the name"),
        (lambda: lab.script_study(["a.py"], folder=3), "folder: cannot be of type int; give the"),
        (lambda: lab.update_catalogue(3), "path: cannot be of type int; give the path of a .po"),
        (lambda: lab.lesson_slides("s", names="04"), "names: cannot be of type str; give a list"),
        (lambda: lab.class_budget(folder=3), f"folder: cannot be of type int; {FOLDER}"),
        (
            lambda: lab.class_budget(minutes_per_job="x"),
            "minutes_per_job: cannot be of type str; give a number of minutes",
        ),
        (lambda: lab.predict("quickstart", machine=3), "machine: cannot be of type int; give a"),
        (lambda: lab.best_plans("quickstart", machine=3), "machine: cannot be of type int; give a"),
        (lambda: lab.predict("quickstart", profiles=3), "profiles: cannot be of type int; give a"),
        (lambda: lab.status("quickstart", "all"), "tasks: cannot be of type str; give some of"),
        (lambda: lab.audit("quickstart", records="x"), "records: cannot be of type str; give the"),
        (lambda: lab.audit("quickstart", calibration="x"), "calibration: cannot be of type str"),
        (lambda: lab.report_table("t.csv", gpu_hours="x"), "gpu_hours: cannot be of type str"),
        (lambda: lab.report_table("t.csv", out=3), "out: cannot be of type int; give the path"),
        (lambda: lab.Study.load("quickstart", quick=1), "quick: cannot be of type int; give True"),
        (lambda: lab.check([2], "01.flops"), "name: cannot be of type list; give the name of"),
        (
            lambda: lab.check_ranks(TABLE, file="flat.py"),
            "name: cannot be of type DataFrame; give the name of",
        ),
        (
            lambda: lab.check_ranks("03.flat", file="flat.py", world_size="2"),
            "world_size: cannot be of type str; give a number from 2",
        ),
    ],
)
def test_an_argument_of_another_type_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value).startswith(f"argument: {said}")


def test_combined_errors_end_with_the_highest_status() -> None:
    failed, unusable = LabError("no kernel"), InputError.of("study.yaml", "title", "missing")
    error = combined([unusable, failed])
    assert str(error).splitlines() == ["study.yaml: title: missing", "no kernel"]
    assert (error.exit_status, combined([failed]).exit_status) == (2, 1)


def test_a_problem_of_several_runs_is_one_problem() -> None:
    problems = [Problem("base", "missing"), Problem("grid", "empty"), Problem("base", "missing")]
    assert InputError("study", problems).problems == tuple(problems[:2])


@pytest.mark.parametrize(
    ("text", "where"),
    [("results\udcff.csv", "table"), ("results.csv", "title"), ("results.csv", "out")],
)
def test_a_report_of_a_table_refuses_bytes_that_no_page_holds(text: str, where: str) -> None:
    options = {where: "\udcff"} if where != "table" else {}
    with pytest.raises(InputError, match=rf"argument: {where}: '.*\\udcff.*cannot read"):
        lab.report_table(text, **options)
