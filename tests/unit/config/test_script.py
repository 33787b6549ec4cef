"""A script in a study: its command, its sources in the run's id, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from factories import record

from lab import cli
from lab.config.new_study import script_study
from lab.config.run import Run, distinct_labels
from lab.config.study import Study, Task
from lab.errors import InputError, LabError
from lab.perfmodel.predict import at_world_size
from lab.records.store import Store, other_commands, write_record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("from net import Net\nexec(open('more.py').read())\n")
    (tmp_path / "net.py").write_text("class Net: ...\n")
    (tmp_path / "more.py").write_text("x = 1\n")
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    (tmp_path / "other.py").write_text("y = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(folder: Path, command: Any = "train.py --config=config.yaml", **base: Any) -> Study:
    model = {"kind": "script", "command": command} | base.pop("model", {})
    content = {
        "title": "Script",
        "question": "?",
        "base": {"model": model, **base},
        "grid": {"world_size": [1, 2]},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    return Study.load(folder)


def ids(*args: Any, **kwargs: Any) -> set[str]:
    return {run.id for run in load(*args, **kwargs).runs}


@pytest.mark.parametrize("name", ["train.py", "net.py", "more.py", "config.yaml"])
def test_an_id_changes_with_all_that_the_script_is_made_of(folder: Path, name: str) -> None:
    before = ids(folder)
    (folder / "other.py").write_text("y = 2\n")
    assert ids(folder) == before
    (folder / name).write_text((folder / name).read_text() + "\n# changed\n")
    assert ids(folder).isdisjoint(before)


@pytest.mark.parametrize("constant", ["a\\0b.json", "運" * 100 + ".py", "\\ud800.yaml"])
def test_a_constant_that_no_file_can_be_called_is_no_fault(folder: Path, constant: str) -> None:
    (folder / "train.py").write_text(f'name = "{constant}"\n', encoding="utf-8")
    assert ids(folder)


def test_an_id_changes_with_the_arguments_and_not_with_the_folder(folder: Path) -> None:
    before = ids(folder)
    assert ids(folder, "train.py --config=config.yaml --lr 2").isdisjoint(before)
    inner = folder / "reports" / "study"
    inner.mkdir(parents=True)
    assert ids(inner, model={"directory": "../.."}) == before


@pytest.mark.parametrize("file", ["pack/train.py", "pack/train/__main__.py"])
def test_a_module_is_made_of_what_it_imports_from_where_it_runs(folder: Path, file: str) -> None:
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text("from net import Net\nfrom .. import pack\n")
    command = "-m pack.train --batch {world_size}"
    run = load(folder, command).runs[1]
    assert run.label == "pack/train.py script x2, --batch 2" and run.script
    assert run.script.path(folder) == folder / file and run.script.root(folder) == folder
    before = ids(folder, command)
    (folder / "net.py").write_text("class Net: pass\n")
    assert ids(folder, command).isdisjoint(before)
    study = script_study(["-m", "pack.train"])
    assert study.name == "train" and study.title == "train.py on 1 and 2 ranks"


def test_what_a_script_decides_is_unknown_and_not_a_default(folder: Path) -> None:
    run = load(folder).runs[1]
    assert (run.global_batch_size, run.micro_batch_size, run.precision) == (None, None, None)
    assert run.label == "train.py script x2, --config=config.yaml"
    again = Run.model_validate_json(run.model_dump_json())
    assert again == run and again.id == run.id and hash(again) == hash(run)


def test_a_stated_batch_is_shared_out_to_the_ranks(folder: Path) -> None:
    study = load(folder, "train.py {micro_batch_size} {world_size}", global_batch_size=8)
    values = [
        {"micro_batch_size": run.micro_batch_size, "world_size": n}
        for n, run in enumerate(study.runs, start=1)
    ]
    assert [run.script.arguments(one) for run, one in zip(study.runs, values, strict=True)] == [
        ["8", "1"],
        ["4", "2"],
    ]


@pytest.mark.parametrize(
    ("model", "label"),
    [
        ({"command": "{}/run.py"}, "{}/run.py"),
        ({"command": "./run.py", "directory": "{}"}, "{}/run.py"),
        ({"command": "../{}/run.py", "directory": "two"}, "{}/run.py"),
        ({"command": "-m {}.run"}, "{}/run.py"),
    ],
)
def test_scripts_of_one_name_are_told_apart_by_their_folders(
    folder: Path, model: dict[str, str], label: str
) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "run.py").write_text(f"name = {name!r}")
    models = [{key: text.format(name) for key, text in model.items()} for name in ("one", "two")]
    base = {"steps": 8, "warmup_steps": 2}
    grid = {"model": [{"kind": "script"} | one for one in models]}
    content = {"title": "Two", "question": "?", "scaling": "none", "base": base, "grid": grid}
    (folder / "study.yaml").write_text(yaml.safe_dump(content | {"repeats": 1}))
    labels = [run.label for run in Study.load(folder).runs]
    assert labels == [f"{label.format(name)} script x1" for name in ("one", "two")]


def test_a_label_has_the_values_that_the_script_is_given(folder: Path) -> None:
    command = "train.py --batch={micro_batch_size} --out {out}"
    study = load(folder, command, global_batch_size=8)
    assert [run.label for run in study.runs] == [
        "train.py script x1, batch 8, --batch=8 --out {out}",
        "train.py script x2, batch 8, --batch=4 --out {out}",
    ]
    short, common = distinct_labels(study.runs)
    assert list(short.values()) == ["x1", "x2"] and common == "train.py script, batch 8"


@pytest.mark.parametrize(
    ("command", "base", "message"),
    [
        ("train2.py", {}, "no script 'train2.py'; did you mean 'train.py'"),
        ("torchrun train.py", {}, "leave it out: the lab itself starts the script"),
        ("/usr/bin/mpirun -n 2 train.py", {}, "leave it out: the lab itself starts the script"),
        ("-m torch.distributed.run train.py", {}, "is not a script but starts one; leave it out"),
        ("-m", {}, "'-m' does not name a module; write -m and its name, such as scripts.train"),
        ("-m package/train.py", {}, "'-m package/train.py' does not name a module"),
        ("-m trein", {}, "no script 'trein.py'; did you mean 'train.py'"),
        ("train.py 'x", {}, "No closing quotation"),
        ([], {}, "base.model.command: empty; give it a value"),
        ("train.py {micro_batch}", {}, "unknown placeholder '{micro_batch}'"),
        ("train.py {micro_batch_size}", {}, "which has no value"),
        ("train.py", {"learning_rate": 0.1}, "learning_rate never reaches the script"),
        ("train.py", {"strategy": "ddp"}, "with a script, which has its own"),
        ("train.py", {"data": "digits"}, "with a script, which has its own"),
        ("train.py", {"warmup_steps": 0}, "at least 1"),
        ("train.py", {"model": {"launcher": "python"}}, "is 2; use world_size 1 (--ranks 1), or"),
        ("train.py", {"global_batch_size": 3}, "global_batch_size 3 is not"),
    ],
)
def test_mistakes_are_told_before_a_job_starts(
    folder: Path, command: Any, base: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        load(folder, command, **base)
    assert message in str(error.value)
    assert "neither global_batch_size" not in str(error.value)  # which a script decides


def test_a_folder_without_scripts_is_named(folder: Path) -> None:
    for script in folder.glob("*.py"):
        script.unlink()
    with pytest.raises(InputError, match=rf"no script 'train\.py'; {folder} has no Python file"):
        load(folder, "train.py")


def test_a_script_that_is_a_loop_of_links_is_missing(folder: Path) -> None:
    (folder / "train.py").unlink()
    (folder / "train.py").symlink_to("train.py")
    with pytest.raises(InputError, match=r"no script .train\.py."):
        load(folder)


def test_a_script_that_is_not_python_is_told_with_its_line(folder: Path) -> None:
    (folder / "train.py").write_text("x = 1\nfor\n")
    with pytest.raises(InputError, match=r"train\.py, line 2"):
        load(folder)


def test_only_a_script_leaves_its_batch_open(folder: Path) -> None:
    with pytest.raises(InputError, match="neither global_batch_size"):
        load(folder, model={"kind": "gpt", "command": None})
    for name in ("global_batch_size", "precision"):
        with pytest.raises(ValueError, match=f"{name} is null"):
            Run.model_validate(
                {"global_batch_size": None, "micro_batch_size": None}
                | (
                    {}
                    if name == "global_batch_size"
                    else {"global_batch_size": 8, "precision": None}
                )
            )
    with pytest.raises(ValueError, match="is for scripts, but the model is not one"):
        Run.model_validate({"global_batch_size": 8, "strategy": "script"})


def test_measure_writes_a_study_that_the_same_command_goes_on_with(folder: Path) -> None:
    study = script_study(["train.py", "--lr", "1"], ranks=[1, 2], scaling="weak")
    assert (
        study.folder == folder / "reports" / "train" and study.title == "train.py on 1 and 2 ranks"
    )
    assert {run.id for run in script_study(["train.py", "--lr", "1"], ranks=[1]).runs} < {
        run.id for run in study.runs
    }
    assert study.runs[0].script.path(study.folder) == folder / "train.py"


def test_measure_writes_into_no_folder_of_other_files(folder: Path) -> None:
    for name in ("notes/mine", "."):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "a.txt").write_text("mine")
        with pytest.raises(InputError, match=r"holds other files, such as a\.txt; give another"):
            script_study(["train.py"], folder=name)
        assert not (folder / name / "study.yaml").exists()
    (folder / "notes" / "results" / "out").mkdir(parents=True)  # of a study that was removed
    assert script_study(["train.py"], folder="notes/results").name == "results"


def test_measure_leaves_nothing_behind_where_it_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean 'train\.py'"):
        script_study(["train2.py"])
    assert not (folder / "reports" / "train2").exists()
    script_study(["train.py"])
    written = (folder / "reports/train/study.yaml").read_text()
    with pytest.raises(InputError, match="no value"):
        script_study(["train.py", "{micro_batch_size}"])
    assert (folder / "reports/train/study.yaml").read_text() == written
    load(folder)
    with pytest.raises(InputError, match="did not write"):
        script_study(["train.py"], folder=folder)


def test_measure_says_that_its_folder_cannot_be_written(folder: Path) -> None:
    (folder / "reports").write_text("a file")
    with pytest.raises(InputError, match="measure: reports/train: is not a folder; rename"):
        script_study(["train.py"])


def test_records_of_another_command_are_kept_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = partial(script_study, global_batch_size=8)
    first = measured(["train.py", "--lr", "1"], ranks=[1, 2])
    store = Store(first.out)
    for run in first.runs:
        write_record(record(run), store.folder(Task(run, 0)))
    assert other_commands(first) == []
    for other in (["train.py", "--lr", "2"], ["train.py"]):
        (text,) = other_commands(measured(other))
        assert "train.py --lr 1 on 1, 2 ranks; its own command reports it again" in text
    (text,) = other_commands(measured(["train.py", "--lr", "1"], ranks=[1]))
    assert "on 2 ranks" in text
    again = measured(["train.py", "--lr", "1"], ranks=[1, 2])
    assert all(map(store.completed, again.tasks[:2])) and other_commands(again) == []
    written = (folder / "reports/train/study.yaml").read_text()
    monkeypatch.setattr("sys.argv", ["lab", "measure", "--ranks", "1,4096", "--", "train.py"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "needs 4096 ranks" in capsys.readouterr().err
    assert (folder / "reports/train/study.yaml").read_text() == written
    (folder / "net.py").write_text("class Net: x = 1\n")
    (text,) = other_commands(measured(["train.py", "--lr", "1"], ranks=[1, 2]))
    assert text.endswith("before the script was changed")


def test_of_what_a_script_decides_no_number_is_made(folder: Path) -> None:
    study = load(folder)
    (run, _) = study.runs
    assert run.global_batch_size is None and run.micro_batch_size is None and run.precision is None
    with pytest.raises(LabError, match="not all known"):
        _ = run.stated
    larger = at_world_size(run, 8, study=study)
    assert larger is not None and (larger.world_size, larger.global_batch_size) == (8, None)
    study_with_batch = load(folder, "train.py", global_batch_size=8)
    larger = at_world_size(study_with_batch.runs[0], 8, study=study_with_batch)
    assert larger is not None and larger.micro_batch_size == 1
    assert at_world_size(study_with_batch.runs[0], 3, study=study_with_batch) is None
