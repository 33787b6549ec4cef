"""A user's own code in a study: found, read, hashed, and refused before a job starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from lab.config.models import PythonModel
from lab.config.own import digest, find_module, installed, is_unchanged
from lab.config.run import Run
from lab.config.study import Study
from lab.errors import InputError

CODE = "from layers import block\n\nclass Net:\n    pass\n\ndef loss(x, y): ...\ndef data(): ...\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(CODE)
    (tmp_path / "layers.py").write_text("def block(): ...\n")
    (tmp_path / "other.py").write_text("x = 1\n")
    return tmp_path


def write(folder: Path, model: dict[str, object], data: object = None, **base: object) -> None:
    own = {"kind": "python", "factory": "net:data"}
    content = {
        "title": "Own",
        "question": "?",
        "base": {"model": model, "data": data or own, "global_batch_size": 4, **base},
        "grid": {"world_size": [1, 2]},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))


NET = {"kind": "python", "factory": "net:Net", "loss": "net:loss", "args": {"width": 8}}


def test_an_id_changes_with_the_sources_and_the_arguments_alone(folder: Path) -> None:
    def ids(**changes: object) -> set[str]:
        write(folder, NET | changes)
        return {run.id for run in Study.load(folder).runs}

    before = ids()
    assert ids() == before and ids(args={"width": 16}).isdisjoint(before)
    (folder / "other.py").write_text("x = 2\n")  # nothing imports it
    assert ids() == before
    (folder / "layers.py").write_text("def block(): return 1\n")
    assert ids().isdisjoint(before)


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (f"x = {'-' * 100_000}1\n", "nested too deeply"),
        (f"from {'.' * 30} import other\n", ""),  # of no package of the study
    ],
)
def test_sources_that_cannot_be_followed_are_told_or_left(
    folder: Path, code: str, what: str
) -> None:
    (folder / "layers.py").write_text(code)
    write(folder, NET)
    if what:
        with pytest.raises(InputError, match=what):
            Study.load(folder)
    else:
        assert Study.load(folder).runs


def test_a_name_may_be_imported_where_a_package_may_be_missing(folder: Path) -> None:
    (folder / "own.py").write_text("try:\n    from layers import Net\nfinally:\n    pass\n")
    write(folder, NET | {"factory": "own:Net"})
    assert Study.load(folder).runs


def test_a_run_keeps_its_sources_through_a_record(folder: Path) -> None:
    write(folder, NET)
    run = Study.load(folder).runs[0]
    again = Run.model_validate_json(run.model_dump_json())
    assert again == run and again.id == run.id and hash(again) == hash(run)
    model = run.architecture
    assert isinstance(model, PythonModel) and is_unchanged(model, folder)
    (folder / "net.py").write_text(CODE + "# edited\n")
    assert not is_unchanged(model, folder)
    (folder / "net.py").unlink()
    assert not is_unchanged(model, folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"factory": "nett:Net"}, "base.model: no module 'nett' beside the study.*'net'"),
        ({"factory": "os:system"}, "base.model: no module 'os' beside the study"),
        ({"factory": "sys:exit"}, "base.model: no module 'sys' beside the study"),
        ({"factory": "net:Nett"}, "base.model: no 'Nett' in net.py; did you mean 'Net'"),
        ({"loss": "net:los"}, "base.model: no 'los' in net.py; did you mean 'loss'"),
        ({"factory": "../net:Net"}, "base.model.factory: .* does not name a function"),
        ({"factory": "net"}, "base.model.factory: .* does not name a function"),
        ({"widht": 3}, "base.model.widht: unknown key"),
    ],
)
def test_a_wrong_reference_is_refused_with_the_nearest_name(
    folder: Path, change: dict[str, object], problem: str
) -> None:
    write(folder, NET | change)
    with pytest.raises(InputError, match=problem):
        Study.load(folder)


@pytest.mark.parametrize(
    ("code", "args", "problem"),
    [
        ("def make(width, depth=3): ...", {"width": 1}, ""),
        (
            "def make(width, *, depth): ...",
            {"width": 1},
            r"make in own\.py: .*'depth'; add it to args",
        ),
        ("def make(width=1): ...", {"widht": 1}, "'widht'; did you mean 'width'"),
        ("def make(): ...", {"width": 1}, "no argument 'width'; it takes none at all"),
        ("def make(width, /): ...", {"width": 1}, "positional.only"),
        ("class make:\n    def __init__(self, width): ...", {}, "'width'; add it to args"),
        ("class make:\n    def __init__(self, **rest): ...", {"width": 1}, ""),
        ("class make(dict): ...", {"width": 1}, ""),  # its parameters are those of its base
        ("import functools\n@functools.cache\ndef make(): ...", {"width": 1}, ""),
        ("from other import make", {"width": 1}, ""),
    ],
)
def test_arguments_that_a_signature_lacks_are_refused(
    folder: Path, code: str, args: dict[str, int], problem: str
) -> None:
    (folder / "own.py").write_text(f"{code}\n")
    write(folder, NET | {"factory": "own:make", "args": args})
    if problem:
        with pytest.raises(InputError, match=f"base.model: .*{problem}"):
            Study.load(folder)
    else:
        assert Study.load(folder).runs


def test_only_data_is_offered_a_seed(folder: Path) -> None:
    (folder / "own.py").write_text("def make(seed): ...\n")
    own = {"kind": "python", "factory": "own:make"}
    write(folder, NET, own)
    assert Study.load(folder).runs
    write(folder, NET | own | {"args": {}})
    with pytest.raises(InputError, match=r"base.model: make in own.py: missing .*'seed'; add"):
        Study.load(folder)


def test_code_that_does_not_parse_is_told_with_its_line(folder: Path) -> None:
    (folder / "net.py").write_text("class Net:\n    pass\n\ndef loss(:\n")
    write(folder, NET)
    with pytest.raises(InputError, match=r"net\.py, line 4: invalid syntax"):
        Study.load(folder)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"strategy": "tensor_parallel"}, "can only split a GPT"),
        ({"strategy": "pipeline_parallel"}, "can only split a GPT"),
        ({"task": "inference"}, "not on a model of your own"),
    ],
)
def test_what_cannot_carry_an_own_model_says_why(
    folder: Path, settings: dict[str, object], problem: str
) -> None:
    write(folder, NET, **settings)
    with pytest.raises(InputError, match=problem):
        Study.load(folder)


def test_a_model_and_data_that_do_not_go_together_are_told(folder: Path) -> None:
    write(folder, NET, data="stdlib")
    with pytest.raises(InputError, match=r"data that fits: mnist, digits, your own"):
        Study.load(folder)
    write(folder, NET, data="digits")
    assert Study.load(folder).runs[0].label == "Net ddp x1, batch 4, fp32, width 8, digits"


def test_installed_modules_are_found_and_nothing_is_imported(folder: Path) -> None:
    assert find_module("torch.nn", folder).name == "__init__.py"  # type: ignore[union-attr]
    assert find_module("this", folder).name == "this.py"  # type: ignore[union-attr]
    assert find_module("no_such_module", folder) is None
    assert digest(["this:s"], folder) == digest(["this:s"], folder)
    assert "this" not in sys.modules


def test_modules_in_packages_and_relative_imports_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "unet.py").write_text("from .parts import half\nclass UNet: ...\n")
    (package / "parts.py").write_text("half = 0.5\n")
    before = digest(["nets.unet:UNet"], tmp_path)
    (package / "parts.py").write_text("half = 0.25\n")
    assert digest(["nets.unet:UNet"], tmp_path) != before


def test_a_strategy_of_ones_own_is_called_by_its_factory_and_arguments(folder: Path) -> None:
    (folder / "mine.py").write_text("class Local: ...\n")
    own = {"kind": "python", "factory": "mine:Local", "args": {"period": 4}}
    write(folder, NET, strategy=own)
    run = Study.load(folder).runs[-1]
    assert run.label == "Net Local x2, batch 4, fp32, width 8, period 4, data"
    assert run.facts.moves == "what its code sends" and run.data_parallel_size == 2
    assert Run.model_validate_json(run.model_dump_json()) == run
    write(folder, NET, strategy=own | {"args": {"period": 8}})
    assert Study.load(folder).runs[-1].id != run.id
    write(folder, NET, strategy="mine:Local")
    short = Study.load(folder).runs[-1]
    assert short.own_strategy is not None and short.own_strategy.args == {}
    assert short.label == "Net Local x2, batch 4, fp32, width 8, data"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"strategy": "mine:Locl"}, "base.strategy: no 'Locl' in mine.py; did you mean 'Local'"),
        ({"strategy": "dpd"}, "base.strategy: unknown strategy 'dpd'; did you mean 'ddp'"),
        ({"strategy": {"factory": "mine:Local", "arg": 1}}, "base.strategy.arg: unknown key"),
        ({"strategy": "mine:Local", "bucket_cap_mb": 1.0}, "bucket_cap_mb is a setting of DDP"),
        (
            {"strategy": "mine:Local", "compile": True},
            "compile does not work with strategy 'mine:Local'",
        ),
        (
            {"own_strategy": {"factory": "mine:Locl"}},
            "base.own_strategy: unknown key; did you mean",
        ),
    ],
)
def test_a_wrong_strategy_is_refused(
    folder: Path, settings: dict[str, object], problem: str
) -> None:
    (folder / "mine.py").write_text("class Local: ...\n")
    write(folder, NET, **settings)
    with pytest.raises(InputError, match=problem):
        Study.load(folder)


def test_code_of_a_strategy_beside_another_strategy_is_refused() -> None:
    content = {"micro_batch_size": 1, "own_strategy": {"factory": "json:loads"}}
    with pytest.raises(ValidationError, match="own_strategy together with strategy 'ddp'"):
        Run.model_validate(content)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package that gives its code names by entry points."""
    place = tmp_path / "site"
    (place / "nets").mkdir(parents=True)
    (place / "nets" / "__init__.py").write_text(CODE.partition("\n")[2])
    information = place / "nets-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: nets\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[lab.models]\nsmall-net = nets:Net\n[lab.data]\ncells = nets:data\n"
        "[lab.strategies]\nlazy = nets:Net\n"
    )
    monkeypatch.syspath_prepend(place)
    installed.cache_clear()
    yield place
    installed.cache_clear()


def test_an_installed_name_stands_for_its_reference(folder: Path, package: Path) -> None:
    (folder / "study.yaml").write_text(
        "title: Installed\nquestion: '?'\n"
        "base: {model: small-net, data: cells, strategy: lazy, global_batch_size: 4}\n"
        "grid: {world_size: [1, 2]}\n"
    )
    run = Study.load(folder).runs[0]
    assert isinstance(run.architecture, PythonModel) and run.architecture.source
    assert (run.architecture.factory, run.strategy) == ("nets:Net", "nets:Net")
    assert run.dataset.label == "data"
    again = Run.model_validate_json(run.model_dump_json())
    assert again == run and again.id == run.id
    write(folder, {"kind": "python", "factory": "small-net", "loss": "nets:loss"})
    assert Study.load(folder).runs[0].architecture.factory == "nets:Net"


def test_a_name_that_nobody_installed_is_unknown(folder: Path, package: Path) -> None:
    write(folder, {"kind": "python", "factory": "smal-net"})
    with pytest.raises(InputError, match="'smal-net' does not name a function or class"):
        Study.load(folder)
    (folder / "study.yaml").write_text(
        "title: T\nquestion: '?'\nbase: {strategy: lasy, global_batch_size: 4}\ngrid: {world_size: [1]}\n"
    )
    with pytest.raises(InputError, match="unknown strategy 'lasy'"):
        Study.load(folder)
