"""Notebooks in kernels: their parameters, what is kept of a failure, and what they share."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path

import nbformat
import psutil
import pytest
from studies import StudyMaker

import lab
from lab.report.execute import Execution, execute, executing, shared_kernels

NOTEBOOKS = Path(__file__).parents[3] / "notebooks"
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}


def test_a_thread_that_never_ends_does_not_hold_an_interrupted_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, released = importlib.import_module("lab.report.execute"), threading.Event()
    monkeypatch.setattr(module, "_execute_each", lambda waiting: released.wait())
    monkeypatch.setattr(module, "ENDING_S", 0.2)
    execution = Execution(tmp_path / "a", tmp_path / "b", {})
    with pytest.raises(KeyboardInterrupt), executing([execution]):
        raise KeyboardInterrupt
    released.set()


def test_unknown_parameter_of_a_notebook_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(lab.InputError, match="did you mean 'study'"):
        execute(NOTEBOOKS / "run.ipynb", tmp_path / "run.ipynb", {"stud": "x"})
    assert not list(tmp_path.iterdir())


def test_a_word_for_a_parameter_that_is_true_or_false_measures_nothing(
    make_study: StudyMaker, tmp_path: Path
) -> None:
    study = make_study()
    with pytest.raises(lab.LabError, match="measure: cannot be of type str; give True or False"):
        asked = {"study": str(study), "measure": "no"}
        execute(NOTEBOOKS / "run.ipynb", tmp_path / "run.ipynb", asked)
    assert not (study / "out").exists()


def test_failing_notebook_is_kept_and_named_until_it_succeeds(tmp_path: Path) -> None:
    with pytest.raises(lab.LabError, match="partial notebook"):
        execute(
            NOTEBOOKS / "run.ipynb", tmp_path / "run.ipynb", {"study": str(tmp_path / "nowhere")}
        )
    assert (tmp_path / "run.partial.ipynb").exists() and not (tmp_path / "run.ipynb").exists()
    empty = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(), empty)
    made = execute(empty, tmp_path / "run.ipynb", {})
    assert made.exists() and not (tmp_path / "run.partial.ipynb").exists()


def test_what_a_user_has_ipython_do_in_their_own_notebooks_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    startup = tmp_path / ".ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00.py").write_text("of_startup = display = None")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / ".ipython"))
    cell = nbformat.v4.new_code_cell("display('of_startup' in globals())")
    notebook = tmp_path / "empty.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=KERNEL), notebook)
    executed = nbformat.read(execute(notebook, tmp_path / "run.ipynb", {}), as_version=4)
    assert executed.cells[-1].outputs[0].data["text/plain"] == "False"


def test_nothing_is_imported_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\n"
    for name in ("pandas", "ipykernel_launcher", "lab", "numpy"):
        (tmp_path / f"{name}.py").write_text(trap)
    parameters = nbformat.v4.new_code_cell("number = 0", metadata={"tags": ["parameters"]})
    code = "import os, sys, pandas\nprint(os.environ.get('PYTHONSAFEPATH'), '' in sys.path)"
    cells = [parameters, nbformat.v4.new_code_cell(code)]
    template = tmp_path / "template.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), template)
    monkeypatch.chdir(tmp_path)
    made = execute(template, tmp_path / "made.ipynb", {})
    assert not (tmp_path / "sprung").exists() and not list(tmp_path.glob("*.building"))
    # What a notebook starts itself, such as a user's script, finds its own modules.
    assert "None False" in made.read_text()


def test_notebooks_share_a_kernel_but_neither_names_nor_numbers(tmp_path: Path) -> None:
    code = "import os\nprint(os.getpid(), 'earlier' in globals(), number)\nearlier = True"
    parameters = nbformat.v4.new_code_cell("number = 0", metadata={"tags": ["parameters"]})
    template = tmp_path / "template.ipynb"
    cells = [parameters, nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), template)
    targets = [tmp_path / f"{number}.ipynb" for number in range(6)]
    with executing(
        Execution(template, target, {"number": number}) for number, target in enumerate(targets)
    ):
        assert not all(target.exists() for target in targets)
    made = [nbformat.reads(target.read_text(), as_version=4).cells[-1] for target in targets]
    printed = [cell.outputs[0].text.split() for cell in made]
    assert [words[1:] for words in printed] == [["False", str(number)] for number in range(6)]
    assert len({words[0] for words in printed}) == 1
    assert {cell.execution_count for cell in made} == {3}  # after its two cells of parameters


def test_reports_that_share_kernels_start_in_their_own_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os\nprint(os.getpid(), os.getcwd())\nassert not number"
    parameters = nbformat.v4.new_code_cell("number = 0", metadata={"tags": ["parameters"]})
    template = tmp_path / "template.ipynb"
    cells = [parameters, nbformat.v4.new_code_cell(code)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), template)
    printed = []
    with shared_kernels():
        for name in ("first", "second", "failed", "third"):
            (tmp_path / name).mkdir()
            monkeypatch.chdir(tmp_path / name)
            target = tmp_path / f"{name}.ipynb"
            if name == "failed":
                with pytest.raises(lab.LabError, match="partial notebook"):
                    execute(template, target, {"number": 1})
            else:
                made = nbformat.reads(execute(template, target, {}).read_text(), as_version=4)
                printed.append(made.cells[-1].outputs[0].text.split())
        assert psutil.pid_exists(int(printed[0][0]))
    pids, folders = zip(*printed, strict=True)
    assert folders == tuple(str(tmp_path / name) for name in ("first", "second", "third"))
    # A kernel in which a notebook has failed is not used again.
    assert pids[0] == pids[1] != pids[2]
    assert not any(psutil.pid_exists(int(pid)) for pid in pids)


def test_cells_that_fill_a_widget_until_they_end_are_executed(tmp_path: Path) -> None:
    """The kernel answers while the client still sends it the widget's states."""
    fill = "for number in range(100):\n        display(number)"
    code = f"import ipywidgets\nwith ipywidgets.Output():\n    {fill}"
    template = tmp_path / "template.ipynb"
    cells = [nbformat.v4.new_code_cell(code) for _ in range(4)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), template)
    assert execute(template, tmp_path / "made.ipynb", {}).exists()
