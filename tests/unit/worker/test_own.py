"""A user's own module and data on a rank: what is wrong with them is said before or as they fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lab.config.models import PythonModel
from lab.errors import LabError
from lab.worker import own
from lab.worker.own import Items, OwnModel, build

MODULES = """
import sys
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.layer = nn.Linear(8, classes)

    def forward(self, x):
        return self.layer(x)

class Pair(Net):
    def forward(self, x):
        return self.layer(x), x

class Detached(Net):
    def forward(self, x):
        return self.layer(x).detach()

def lazy():
    return nn.LazyLinear(4)

def without_values():
    return Net().to("meta")

def frozen():
    return Net().requires_grad_(False)

def leaves():
    sys.exit("no data here")

def mean(output, targets):
    return output.mean()

def dictionary(output, targets):
    return {"loss": output.mean()}

def own_cross_entropy(output, targets):
    return functional.cross_entropy(output, targets)
"""
INPUTS, TARGETS = torch.randn(5, 8), torch.arange(5) % 4


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "theirs.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("theirs", None)


def config(factory: str, loss: str = "torch.nn:CrossEntropyLoss", **more: object) -> PythonModel:
    values = {"kind": "python", "factory": f"theirs:{factory}", "loss": loss} | more
    return PythonModel.model_validate(values)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("lazy", r"theirs:lazy has parameters without a shape \(weight\)"),
        ("without_values", r"parameters on the device meta \(layer\.weight\)"),
        ("frozen", "theirs:frozen has no parameter that requires a gradient"),
        ("leaves", r"theirs:leaves failed in theirs\.py, line \d+: SystemExit: no data here"),
    ],
)
def test_a_module_that_cannot_be_trained_is_refused(
    folder: Path, factory: str, message: str
) -> None:
    with pytest.raises(LabError, match=message):
        build(config(factory))


@pytest.mark.parametrize(
    ("factory", "loss", "message"),
    [
        (
            "Net",
            "theirs:dictionary",
            "loss of theirs:Net is not a scalar tensor but a dict; return",
        ),
        ("Detached", "theirs:mean", "the loss of theirs:Detached has no gradient: do not compute"),
        (
            "Pair",
            "torch.nn:CrossEntropyLoss",
            r"the loss torch\.nn:CrossEntropyLoss failed: TypeError: .* must be Tensor, not tuple; "
            r"it was given an output of theirs:Pair, a tuple, and targets, int64 of shape \(5,\)",
        ),
        ("Pair", "theirs:own_cross_entropy", r"^theirs\.py, line \d+: TypeError: "),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_told_with_what_it_was_given(
    folder: Path, factory: str, loss: str, message: str
) -> None:
    model = build(config(factory, loss))
    with pytest.raises(LabError, match=message), own.located(folder):
        model(INPUTS, TARGETS)


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("import argparse; argparse.ArgumentParser().parse_args(['--no'])", "no command line"),
        ("raise EOFError('EOF when reading a line')", "nothing is typed or piped into a rank"),
        ("from .theirs import Net", "by their names alone, without a dot"),
    ],
)
def test_a_module_written_to_be_started_by_hand_is_told_what_a_rank_lacks(
    folder: Path, line: str, advice: str
) -> None:
    (folder / "started.py").write_text(f"{line}\ndef made():\n    pass\n")
    with pytest.raises(LabError, match=rf"^started:made failed in started\.py, line 1: .*{advice}"):
        own.load("started:made")


def test_an_error_is_told_with_the_first_one_that_caused_it(folder: Path) -> None:
    (folder / "lazy.py").write_text(
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n"
        "    raise RuntimeError('could not load it') from error\n"
    )
    words = "RuntimeError: could not load it, caused by ZeroDivisionError: division by zero$"
    with pytest.raises(LabError, match=words):
        own.load("lazy:made")


def test_a_target_beyond_the_classes_is_told_with_the_shape_of_the_output(folder: Path) -> None:
    model = build(config("Net", args={"classes": 3}))
    shape = r"float32 of shape \(5, 3\), and targets, int64 of shape \(5,\)$"
    with pytest.raises(LabError, match=shape), own.located(folder):
        model(INPUTS, TARGETS)


def test_an_error_of_torch_that_says_enough_stays_as_it_is(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes"), own.located(folder):
        torch.ones(2, 3) @ torch.ones(2, 3)


def test_a_loss_without_a_gradient_is_what_an_evaluation_wants(folder: Path) -> None:
    with torch.no_grad():
        assert not build(config("Net"))(INPUTS, TARGETS).requires_grad


def test_an_own_model_compiles_to_one_graph(folder: Path) -> None:
    model = build(config("Net"))
    loss = torch.compile(model, backend="eager", fullgraph=True)(INPUTS, TARGETS)
    assert loss.item() == pytest.approx(model(INPUTS, TARGETS).item())


def test_ranks_with_different_modules_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gathered(mine: list[object]) -> list[object]:
        return [mine, [*mine, ["extra.weight", [3], "torch.float32"]]]

    monkeypatch.setattr("lab.worker.own.all_gather_object", gathered)
    with pytest.raises(LabError, match=r"another module on rank 1 than on rank 0 \(extra\.weight"):
        build(config("Net"))


def test_parameters_without_a_gradient_are_named(folder: Path) -> None:
    class Parallel(nn.parallel.DistributedDataParallel):
        def __init__(self, module: nn.Module) -> None:
            nn.Module.__init__(self)
            self.module = module

        def forward(self, *_: object) -> torch.Tensor:
            first = "Expected to have finished reduction in the prior iteration before a new one."
            raise RuntimeError(f"{first}\nParameters which did not receive grad for rank 0: 1\n")

    parallel = Parallel(OwnModel(config("Net")))
    named = "^layer.bias took no part in a step's loss, but DDP waits .* or train with naive_ddp"
    with pytest.raises(LabError, match=named), own.located(folder):
        parallel.forward()


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (("a text", 1), "the input of sample 2 of mine is of type str; return a tensor, an array"),
        ((torch.ones(3), None), "the target of sample 2 of mine is of type NoneType"),
        ((torch.ones(3), {"class": 1}), "the target of sample 2 of mine is of type dict"),
        ((np.array(["a"], dtype=object), 1), "the input of sample 2 of mine is of type object"),
        (([0.5, 1.0], 1), "the input of sample 2 of mine is of type list"),
    ],
)
def test_what_is_no_number_in_a_sample_is_told(sample: tuple[object, ...], message: str) -> None:
    with pytest.raises(LabError, match=message):
        Items([sample] * 4, "mine")[2]


def test_samples_of_numbers_arrays_and_tensors_are_hashed() -> None:
    for part in (1, 0.5, np.float32(1), np.ones(3), torch.ones(3, requires_grad=True)):
        assert Items([(part, 1)], "mine").hashed() == Items([(part, 1)], "mine").hashed()


def test_samples_of_different_shapes_are_told_by_the_name_of_their_data() -> None:
    ragged = Items([(torch.ones(2 + place % 2), 0) for place in range(4)], "mine")
    with pytest.raises(LabError, match=r"samples of mine do not make a batch: stack expects"):
        ragged.take(np.arange(2))
