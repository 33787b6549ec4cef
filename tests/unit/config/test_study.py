"""Studies, and everything that can be wrong with a study file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from studies import SMALL_STUDY, StudyMaker

import lab
from lab.analysis.audit import is_table
from lab.config.study import Study
from lab.errors import InputError


def changed_base(**changes: object) -> dict[str, object]:
    return dict(SMALL_STUDY["base"], **changes)  # type: ignore[call-overload]


def test_tasks_interleave_repeats_over_the_grid(make_study: StudyMaker) -> None:
    study = Study.load(make_study(repeats=2))
    assert [(task.repeat, task.run.world_size) for task in study.tasks] == [
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
    ]


def test_a_notebook_shows_a_study_and_its_tasks_in_a_line(make_study: StudyMaker) -> None:
    study = Study.load(make_study(repeats=2))
    assert repr(study).endswith(f"folder='{study.folder}', runs=2, repeats=2, quick=False)")
    first = study.runs[0]
    assert repr(study.tasks[0]) == f"Task(run=Run({first.label!r}, id={first.id!r}), repeat=0)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"repeat": "one"}, "repeat: cannot be of type str; give a number, counted from 0"),
        ({"run_id": 3}, "run_id: cannot be of type int; give the id of a run, as text"),
        ({"repeat": 9}, "repeat: 9, but the study has 1 repeat, counted from 0"),
    ],
)
def test_a_task_that_does_not_exist_is_refused(
    asked: dict[str, Any], message: str, make_study: StudyMaker
) -> None:
    study = Study.load(make_study(repeats=1))
    with pytest.raises(InputError, match=message):
        study.task(**asked)


def test_quick_overrides_base_grid_and_repeats(make_study: StudyMaker) -> None:
    folder = make_study(
        quick={
            "base": {"steps": 3},
            "grid": {"global_batch_size": [2], "world_size": [1]},
            "repeats": 2,
        }
    )
    quick = Study.load(folder, quick=True)
    assert [(run.steps, run.global_batch_size) for run in quick.runs] == [(3, 2)]
    assert quick.repeats == 2 and quick.quick and not Study.load(folder).quick


def test_a_quick_section_leaves_what_it_does_not_name(make_study: StudyMaker) -> None:
    folder = make_study(quick={"base": {"steps": 3}}, repeats=2)
    assert Study.load(folder, quick=True).repeats == 2
    assert Study.load(folder, quick=True).axes == Study.load(folder).axes


def test_what_each_quick_grid_varies_is_not_taken_from_base(make_study: StudyMaker) -> None:
    grids = [
        {"global_batch_size": [2], "world_size": [size], "steps": [steps]}
        for size, steps in ((1, 3), (2, 5))
    ]
    quick = Study.load(make_study(quick={"grid": grids}), quick=True)
    assert [(run.world_size, run.steps) for run in quick.runs] == [(1, 3), (2, 5)]


def test_study_is_found_by_name(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_study("mine") / "study.yaml"
    monkeypatch.chdir(tmp_path)
    assert Study.load("mine").name == "mine"
    with pytest.raises(InputError, match="did you mean 'mine'"):
        Study.load("mien")
    assert Study.load(file).folder == file.parent and not is_table(file)


@pytest.mark.parametrize("name", ["mine", "a study of mine", "quickstart"])
@pytest.mark.parametrize("place", ["", "reports", "reports/mine", "elsewhere"])
def test_a_command_finds_its_study_from_where_it_is_typed(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str
) -> None:
    study = Study.load(make_study(name))
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / place)
    program, verb, name_or_path = shlex.split(study.command("audit"))
    assert (program, verb) == ("lab", "audit") and Study.load(name_or_path).folder == study.folder
    assert str(tmp_path) not in study.command("audit", public=True)


def test_a_command_quotes_the_path_of_a_profile(make_study: StudyMaker) -> None:
    command = Study.load(make_study("mine")).command("run", ["/my profiles/site.yaml"])
    assert shlex.split(command)[3:] == ["--cluster", "/my profiles/site.yaml"]


def test_problems_name_a_file_from_here(
    make_study: StudyMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_study("mine", scaling="storng")
    with pytest.raises(InputError) as elsewhere:
        Study.load(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as here:
        Study.load("mine")
    assert str(here.value).startswith("reports/mine/study.yaml: ")
    assert str(elsewhere.value) == f"{tmp_path.resolve()}/{here.value}"


def test_a_command_names_a_study_of_the_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.load("quickstart")
    monkeypatch.chdir("/")
    assert Study.load(study.command("run").split()[2]).folder == study.folder
    monkeypatch.chdir(study.folder.parent.parent / "notebooks")
    assert study.command("run") == "lab run quickstart"


BAD = {
    "unknown key": ({"scalling": "strong"}, "scalling: unknown key; did you mean 'scaling'?"),
    "a setting outside base": (
        {"strategy": "ddp"},
        "strategy: unknown key; a run's setting belongs below base, or its values below grid",
    ),
    "misspelt value": (
        {"scaling": "strnog"},
        "scaling: unknown value 'strnog'; did you mean 'strong'?",
    ),
    "unknown key in base": (
        {"base": changed_base(stpes=3)},
        "base.stpes: unknown key; did you mean 'steps'?",
    ),
    "misspelt preset": (
        {"base": changed_base(model="gpt-mni")},
        "base.model: unknown model preset 'gpt-mni'; did you mean 'gpt-mini'?",
    ),
    "unknown data": (
        {"base": changed_base(data="stdlibb")},
        "base.data: unknown data set 'stdlibb'; did you mean 'stdlib'?",
    ),
    "unknown strategy": (
        {"base": changed_base(strategy="dpd")},
        "base.strategy: unknown strategy 'dpd'; did you mean 'ddp'?",
    ),
    "text for a number": (
        {"base": changed_base(steps="many")},
        "base.steps: input should be a valid integer, found 'many'",
    ),
    "number for a name": (
        {"base": changed_base(data=5)},
        "base.data: neither a name nor a mapping, found 5; give its `kind`",
    ),
    "list for a text": ({"title": ["a", "b"]}, "found ['a', 'b']; write a single value"),
    "number in quotes": (
        {"base": changed_base(steps="8", learning_rate="1e-3")},
        "base.steps: input should be a valid integer, found '8'; leave out the quotes",
    ),
    "octal number": (
        {"base": changed_base(steps="017")},
        "base.steps: input should be a valid integer, found '017'; write a whole number",
    ),
    "inference without a run of it": (
        {"kind": "inference"},
        "kind: 'inference', but all runs are trainings; write `task: inference` below base",
    ),
    "too many values": (
        {"base": changed_base(batch_sizes=list(range(1, 22)))},
        "base.batch_sizes: lists 21 values; at most 20 are possible",
    ),
    "fraction for an integer": ({"base": changed_base(steps=2.5)}, "base.steps"),
    "boolean for an integer": ({"base": changed_base(steps=True)}, "base.steps"),
    "negative": (
        {"base": changed_base(steps=-4)},
        "base.steps: input should be greater than or equal to 2, found -4",
    ),
    "not finite": ({"base": changed_base(learning_rate=float("nan"))}, "base.learning_rate"),
    "all steps are warm-up": (
        {"base": changed_base(warmup_steps=4)},
        "warmup_steps 4 leaves none of 4 steps to measure",
    ),
    "indivisible batch": (
        {"grid": {"global_batch_size": [9], "world_size": [1, 2]}},
        "; nearest that fits: 8 or 10",
    ),
    "batch that is no multiple of the one of a rank": (
        {"base": changed_base(micro_batch_size=4), "grid": {"global_batch_size": [10]}},
        "is not micro_batch_size 4 x grad_accum 1 x world_size 1; nearest that fits: 8 or 12",
    ),
    "batch below the one of a rank": (
        {"base": changed_base(micro_batch_size=4), "grid": {"global_batch_size": [3]}},
        "nearest that fits: 4",
    ),
    "batch unlike three factors": (
        {
            "base": changed_base(micro_batch_size=4, grad_accum=2),
            "grid": {"global_batch_size": [32]},
        },
        "is not micro_batch_size 4 x grad_accum 2 x world_size 1; nearest that fits: 8",
    ),
    "no batch": (
        {"grid": {"world_size": [1, 2]}},
        "base: neither global_batch_size nor micro_batch_size",
    ),
    "empty grid": ({"grid": {}}, "grid: empty"),
    "empty axis": (
        {"grid": {"global_batch_size": [4], "world_size": []}},
        "grid.world_size: no values; list at least one",
    ),
    "grid of no list": ({"grid": {"world_size": 2}}, "grid.world_size"),
    "duplicate run": (
        {"grid": {"global_batch_size": [4, 4], "world_size": [1]}},
        "the same run twice",
    ),
    "in base and grid": (
        {"base": changed_base(world_size=1)},
        "grid.world_size: is also in base",
    ),
    "value of the grid": (
        {"grid": {"global_batch_size": [4], "world_size": [1, "two"]}},
        "grid.world_size[1]: input should be a valid integer",
    ),
    "missing title": ({"title": None}, "title: missing"),
    "empty title": ({"title": " \n"}, "title: empty; give it a value"),
    "title that rings": (
        {"title": "a\abell"},
        r"title: 'a\x07bell' has characters that cannot be printed; leave them out",
    ),
    "zero repeats": ({"repeats": 0}, "repeats: input should be greater than or equal to 1"),
    "unknown baseline key": (
        {"baseline": {"wold_size": 1}},
        "baseline.wold_size: unknown key; did you mean 'world_size'?",
    ),
    "baseline not in the grid": (
        {"baseline": {"world_size": 8}},
        "baseline: no run has world_size 8",
    ),
    "single on two ranks": (
        {"base": changed_base(strategy="single")},
        "strategy 'single' has one rank, but world_size is 2",
    ),
    "not strong": (
        {"grid": {"micro_batch_size": [4], "world_size": [1, 2]}},
        "strong scaling holds global_batch_size fixed",
    ),
    "not weak": ({"scaling": "weak"}, "weak scaling holds micro_batch_size fixed"),
    "unknown kind of model": (
        {"base": changed_base(model={"kind": "cnnn"})},
        "base.model.kind: unknown kind 'cnnn'; did you mean 'cnn'?",
    ),
    "model without a kind": (
        {"base": changed_base(model={"width": 8})},
        "base.model.kind: missing",
    ),
    "unknown key beside a preset": (
        {"base": changed_base(model={"preset": "gpt-nano", "widht": 8})},
        "base.model.widht: unknown key; did you mean 'width'?",
    ),
    "unknown key in the model": (
        {
            "base": changed_base(
                model={"kind": "gpt", "layrs": 1, "heads": 1, "width": 8, "block_size": 8}
            )
        },
        "base.model.layrs: unknown key; did you mean 'layers'?",
    ),
    "heads do not divide": (
        {
            "base": changed_base(
                model={"kind": "gpt", "layers": 1, "heads": 3, "width": 8, "block_size": 8}
            )
        },
        "base.model: width 8 is not divisible by heads 3",
    ),
    "unknown quick key": ({"quick": {"bse": {}}}, "quick.bse: unknown key; did you mean 'base'?"),
    "too many runs": (
        {"grid": {"seed": list(range(101)), "eval_batches": list(range(1, 101))}},
        "grid: more than 10,000 runs",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_bad_study_says_what_where_and_what_to_do(
    make_study: StudyMaker, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Study.load(make_study(**changes))
    assert message in str(caught.value)
    assert "study.yaml" in str(caught.value)


def test_all_problems_are_listed_at_once(make_study: StudyMaker) -> None:
    folder = make_study(
        scalling="strong",
        base=changed_base(stpes=3, precision="fp23", learning_rate="fast"),
        grid={"global_batch_size": [9], "world_size": [1, 2, "4"]},
    )
    with pytest.raises(InputError) as caught:
        Study.load(folder)
    places = {problem.where for problem in caught.value.problems}
    assert {
        "scalling",
        "base.stpes",
        "base.precision",
        "base.learning_rate",
        "grid.world_size[2]",
    } <= places
    assert any("nearest that fits" in problem.advice for problem in caught.value.problems)


MANY_FAULTS = """
titles: Many faults
scaling: strong
repeats: three
sweep: {}
base:
  model: gpt-mni
  data: stdlib
  stpes: 3
  precision: fp23
  learning_rate: fast
  micro_batch_size: 4
grid:
  world_size: [1, 2]
  seed: 7
  gradd_accum: [1]
baseline: {world_size: 8}
quick: {base: {stepz: 1}, repeat: 1}
"""


@pytest.mark.parametrize("quick", [False, True])
def test_faults_of_every_kind_are_in_one_message(tmp_path: Path, *, quick: bool) -> None:
    (tmp_path / "study.yaml").write_text(MANY_FAULTS)
    with pytest.raises(InputError) as caught:
        Study.load(tmp_path, quick=quick)
    assert sorted(map(str, caught.value.problems)) == sorted(
        [
            "titles: unknown key; did you mean 'title'?",
            "title: missing; give it a value",
            "question: missing; give it a value",
            "repeats: input should be a valid integer, found 'three'; write a whole number",
            "sweep: unknown key; choose one of: authors, base, baseline, grid, kind, question, quick, "
            "repeats, scaling, title",
            "base.stpes: unknown key; did you mean 'steps'?",
            "base.model: unknown model preset 'gpt-mni'; did you mean 'gpt-mini'?",
            "base.precision: unknown value 'fp23'; did you mean 'fp32'?",
            "base.learning_rate: input should be a valid number, found 'fast'; write a number",
            "grid.seed: input should be a valid list, found 7; write values in brackets, such as "
            "[1, 2]",
            "grid.gradd_accum: unknown key; did you mean 'grad_accum'?",
            "baseline: no run has world_size 8; add it to the grid, or name a baseline that is in "
            "it",
            "scaling: strong scaling holds global_batch_size fixed, but it differs between world "
            "sizes; correct the grid, or change scaling",
            "quick.base.stepz: unknown key; did you mean 'steps'?",
            "quick.repeat: unknown key; did you mean 'repeats'?",
        ]
    )
    assert str(caught.value).startswith(f"{tmp_path / 'study.yaml'}: 15 problems\n  - ")


def test_conflicts_of_one_run_are_listed_together(make_study: StudyMaker) -> None:
    folder = make_study(
        base=changed_base(warmup_steps=9, static_graph=True, loader_workers=2),
        grid={"global_batch_size": [9], "world_size": [1, 2]},
    )
    with pytest.raises(InputError) as caught:
        Study.load(folder)
    for expected in (
        "global_batch_size=9, world_size=2): global_batch_size 9 is not",
        "warmup_steps 9 leaves none of 4 steps to measure; leave at least one",
        "loader_workers 2, but the fast loader has none",
    ):
        assert expected in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"base": "text"},
        {"grid": 5},
        {"base": changed_base(strategy="dpd", warmup_steps=900, steps="many")},
        {"base": changed_base(model="gpt-mni", data="mnist")},
        {
            "kind": "inferense",
            "base": changed_base(
                task="inference", prompt_tokens=[4], new_tokens=4, batch_sizes=[2]
            ),
        },
        {"baseline": [1]},
        {"grid": {"global_batch_size": [4], "world_size": [1, "2"]}, "baseline": {"world_size": 2}},
        {"base": changed_base(warmup_steps=4)},
    ],
)
def test_a_fault_is_no_ground_for_another(
    make_study: StudyMaker, changes: dict[str, object]
) -> None:
    with pytest.raises(InputError) as caught:
        Study.load(make_study(**changes))
    faults = 2 if "dpd" in str(changes) else 1
    assert len(caught.value.problems) == faults, str(caught.value)


BAD_YAML = {
    "bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "repeated key": "title: one\ntitle: two\n",
    "no YAML": "title: [unclosed\n",
    "a list": "- one\n- two\n",
    "empty": "",
    "python object": "title: !!python/object/apply:os.system ['true']\n",
    "too large": "title: " + "x" * 300_000,
    "too deep": "title: " + "[" * 60 + "]" * 60,
    "key is a number": "1: one\n",
    "key is a list": "? [a, b]\n: one\n",
    "a date": "title: 2020-01-01\nquestion: q\ngrid: {seed: [1]}\nbase: {global_batch_size: 0x}\n",
}


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("\ttitle: a", "write spaces instead of the tab"),
        ("title: Scaling: a test", "put text with a colon in quotes"),
        ("title: @home", "put the text in quotes"),
        ("question: a\n  title: b", "check the indentation"),
        ("base: {}\n steps: 3", "indent the keys of a mapping alike"),
        ("title:Scaling\nquestion: a", "the space after each colon"),
    ],
)
def test_what_is_no_yaml_is_told_by_what_people_do(
    line: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text(f"{line}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"^mine/study.yaml: line .*{advice}"):
        Study.load("mine")


@pytest.mark.parametrize("content", BAD_YAML.values(), ids=BAD_YAML.keys())
def test_bad_yaml_is_an_input_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "study.yaml").write_text(content)
    with pytest.raises(InputError):
        Study.load(tmp_path)


@pytest.mark.parametrize(("content", "found"), [("", "nothing"), ("x", "text"), ("- x", "a list")])
def test_a_file_without_keys_says_what_it_holds(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "study.yaml").write_text(content)
    with pytest.raises(InputError, match=f"expected a mapping of keys, found {found};"):
        Study.load(tmp_path)


def test_binary_file_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(b"\xff\xfe\x00title")
    with pytest.raises(InputError, match="UTF-8"):
        Study.load(tmp_path)


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=4),
        max_size=4,
    )
)
def test_no_content_raises_anything_but_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "study.yaml").write_text(yaml.safe_dump(SMALL_STUDY | content))
    for quick in (False, True):
        try:
            Study.load(folder, quick=quick)
        except InputError as error:
            assert error.problems


@given(
    st.sampled_from(["base", "grid", "quick", "baseline"]),
    st.dictionaries(
        st.sampled_from(["base", "grid", "steps", "world_size", "model", "global_batch_size", "?"]),
        st.recursive(
            st.none() | st.integers() | st.text(max_size=5),
            lambda values: (
                st.lists(values, max_size=3)
                | st.dictionaries(st.sampled_from(["steps", "world_size", "?"]), values, max_size=2)
            ),
            max_leaves=4,
        ),
        max_size=4,
    ),
)
def test_no_section_raises_anything_but_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, key: str, section: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "study.yaml").write_text(yaml.safe_dump(SMALL_STUDY | {key: section}))
    for quick in (False, True):
        try:
            Study.load(folder, quick=quick)
        except InputError as error:
            assert error.problems


@pytest.mark.parametrize("name", ["quickstart", "strong-scaling"])
def test_the_studies_of_the_repository_are_valid(name: str) -> None:
    folder = Path(__file__).parents[3] / "reports" / name
    assert Study.load(folder).runs and Study.load(folder, quick=True).runs


def test_strong_scaling_is_the_classical_six() -> None:
    study = Study.load(Path(__file__).parents[3] / "reports" / "strong-scaling")
    assert {(run.global_batch_size, run.world_size) for run in study.runs} == {
        (b, n) for b in (64, 128) for n in (1, 2, 4)
    }


def test_several_grids_make_one_study_without_crossing(make_study: StudyMaker) -> None:
    grids = [
        {"strategy": ["single"], "world_size": [1]},
        {"strategy": ["ddp"], "world_size": [1, 2]},
    ]
    loaded = Study.load(make_study(grid=grids, base=SMALL_STUDY["base"] | {"global_batch_size": 4}))
    assert [(run.strategy, run.world_size) for run in loaded.runs] == [
        ("single", 1),
        ("ddp", 1),
        ("ddp", 2),
    ]
    assert loaded.axes == ("strategy", "world_size")


def test_problems_of_several_grids_say_which(make_study: StudyMaker) -> None:
    grids = [{"world_size": [1]}, {"world_sise": [2]}, {"world_size": [1], "steps": ["many"]}, {}]
    with pytest.raises(InputError) as caught:
        Study.load(make_study(grid=grids, base=SMALL_STUDY["base"] | {"global_batch_size": 4}))
    for expected in (
        "grid[1].world_sise: unknown key; did you mean",
        "grid[2].steps[0]",
        "grid: empty",
    ):
        assert expected in str(caught.value), str(caught.value)


ODD_YAML = ["017", "1:30", "0x1f", "1e400", "9" * 5000, "0x" + "f" * 4300]
TAGGED = [
    "!!bool maybe",
    "!!timestamp x",
    "!!bool '[/red]'",
    "!!int a",
    "!!python/name:os.system x",
]


@pytest.mark.parametrize("value", ODD_YAML, ids=lambda value: value[:6])
def test_numbers_that_people_read_in_two_ways_are_refused(
    make_study: StudyMaker, value: str
) -> None:
    path = make_study() / "study.yaml"
    path.write_text(path.read_text().replace("steps: 4", f"steps: {value}"))
    with pytest.raises(InputError) as refused:
        Study.load(path.parent)
    assert [problem.where for problem in refused.value.problems] == ["base.steps"]


@pytest.mark.parametrize("value", TAGGED)
def test_tags_of_yaml_are_refused_where_they_stand(make_study: StudyMaker, value: str) -> None:
    path = make_study() / "study.yaml"
    path.write_text(path.read_text().replace("steps: 4", f"steps: {value}"))
    with pytest.raises(InputError, match=r"line \d+, column \d+: tags are not allowed"):
        Study.load(path.parent)


def test_faults_of_the_quick_form_are_found_without_it(make_study: StudyMaker) -> None:
    folder = make_study(quick={"base": {"steps": -1}})
    with pytest.raises(InputError) as refused:
        Study.load(folder)
    assert [problem.where for problem in refused.value.problems] == ["quick (base.steps)"]


def test_faults_of_the_full_form_are_found_in_its_quick_form(make_study: StudyMaker) -> None:
    folder = make_study(quick={"base": {"steps": 4}})
    path = folder / "study.yaml"
    head, quick = path.read_text().split("quick:")
    path.write_text(f"{head.replace('steps: 4', 'steps: 017')}quick:{quick}")
    with pytest.raises(InputError) as refused:
        Study.load(folder, quick=True)
    assert [problem.where for problem in refused.value.problems] == ["base.steps"]


def test_an_endless_word_is_cut_in_its_problem(make_study: StudyMaker) -> None:
    with pytest.raises(InputError) as refused:
        Study.load(make_study(question="q" * 200_000))
    text = str(refused.value.problems[0])
    assert len(text) < 300 and "more letters" in text and text.startswith("question: ")


def test_many_alike_problems_are_told_once(make_study: StudyMaker) -> None:
    folder = make_study(grid={"seed": [-seed for seed in range(1, 81)], "world_size": [1]})
    with pytest.raises(InputError) as refused:
        Study.load(folder)
    seeds = [line for line in str(refused.value).splitlines() if "grid.seed" in line]
    assert len(seeds) == 1 and "and 79 more like the last" in str(refused.value)
    assert sum("grid.seed" in problem.where for problem in refused.value.problems) == 80


def test_a_folder_whose_name_is_no_text_is_refused(make_study: StudyMaker) -> None:
    folder = make_study()
    odd = folder.with_name("odd\udcff")
    folder.rename(odd)
    with pytest.raises(InputError, match="rename the folder"):
        Study.load(odd)


def test_functions_take_the_folder_of_a_study_in_its_place(
    make_study: StudyMaker, tmp_path: Path
) -> None:
    study, cluster = str(make_study(repeats=1)), lab.Cluster.load("example-cpu")
    assert {len(lab.plan(study)), len(lab.status(study)), len(lab.predict(study).of)} == {2}
    assert not lab.clean(study) and not lab.cancel(study) and not lab.table(study).size
    assert len(lab.write_scripts(study, cluster, tmp_path / "jobs")) == 4
    with pytest.raises(lab.InputError, match="small: RUN: no completed repeat"):
        lab.generate(study, prompts=["a"])
    for start in (lab.launch, lab.detach):
        with pytest.raises(lab.InputError, match="needs 2 ranks; local: 1 CPU rank"):
            start(study, lab.Cluster.load("local").model_copy(update={"devices": 1}))
    machine = "h100x8:nvlink4:infiniband-ndr"
    assert len(lab.best_plans(study, machine=machine, world_size=2)) == 1
    assert len(lab.predict(study, machine=machine, profiles=[study]).of) == 2
