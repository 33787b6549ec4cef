"""A user's own code on a rank: its module and its data sets, and errors blamed on its lines."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.utils.data import default_collate

from lab.config.datasets import PythonData
from lab.config.models import BATCH_NORM_BY_RANK, DROPOUT_BY_RANK, PythonModel
from lab.config.own import Own, Script, is_unchanged
from lab.config.run import Run
from lab.errors import InputError, LabError, nearest
from lab.machine import Interrupted
from lab.worker.context import Progress
from lab.worker.data.dataset import Dataset, Indices
from lab.worker.distributed import all_gather_object

# Errors with a meaning of their own.
OTHERS = (MemoryError, torch.OutOfMemoryError)
_LOOKUP: Any = type(os.environ).__getitem__
# DDP's message if a parameter has no gradient after a backward pass, and how it names parameters.
NO_GRADIENT = "Expected to have finished reduction in the prior iteration"
WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
# Errors that a module gets for being imported on a rank and not started by hand, and what to do.
ADVICE = {
    "SystemExit: 2": "a rank has no command line to parse: take values from the factory's args",
    "EOFError": "nothing is typed or piped into a rank: take values from the factory's args",
    "ImportError: attempted relative import with no known": "modules beside the study import each "
    "other by their names alone, without a dot",
}
HASHED = 16  # samples of each data set, as making all of them may take hours


def admit(run: Run, folder: Path) -> None:
    """Make modules beside the study importable; LabError if they are not those of the run."""
    parts = (run.architecture, run.dataset, run.own_strategy)
    own = [part for part in parts if isinstance(part, Own)]
    for part in own:
        require_unchanged(part, part.factory, folder)
    if own and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))  # as for a script in that folder


def require_unchanged(code: Own | Script, name: str, folder: Path) -> None:
    """Raise LabError if code of this name is not that of the run; `folder` is the study's."""
    if not is_unchanged(code, folder):
        raise LabError(
            f"{name}, or what it imports, has changed since this run was planned; "
            "start the study again, which makes new runs for the new code"
        )


def make(own: Own, **offered: Any) -> Any:
    """The factory's result from its `args` and those `offered` for which it has a parameter."""
    factory = load(own.factory)
    with blamed(own.factory):
        parameters = inspect.signature(factory).parameters
        options = {name: value for name, value in offered.items() if name in parameters}
        result = factory(**(options | own.args))
    if result is None:
        raise LabError(f"{own.factory} returned nothing; return what it makes")
    return result


def load(reference: str) -> Any:
    """The function or class behind `module:name`; LabError if its import fails."""
    with blamed(reference):
        return pkgutil.resolve_name(reference)


@contextmanager
def located(folder: Path) -> Iterator[None]:
    """Report an error in training that passes through a user's code in `folder` by its last line.

    Raises LabError for such an error, and for one of torch outside that code if it is known what it
    means; all others stay as they are.
    """
    try:
        yield
    except (*OTHERS, Interrupted):
        raise
    except BaseException as error:
        if wrapped := _of_loader(str(error)):
            raise LabError(wrapped) from error
        if isinstance(error, LabError):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
        theirs = [frame for frame in theirs if not _is_library(frame.filename)]
        if not theirs:
            if meaning := _explained(error):
                raise LabError(meaning) from error
            raise
        raise LabError(f"{_place(theirs[-1])}: {_what(error, theirs[-1].line)}") from error


def _place(frame: traceback.FrameSummary) -> str:
    return f"{Path(frame.filename).name}, line {frame.lineno}"


@contextmanager
def blamed(
    reference: str,
    *,
    but: type[BaseException] = Interrupted,
    advice: Mapping[str, str] = ADVICE,
) -> Iterator[None]:
    """Report an error in a user's code by its last line there, with Python's traceback as cause.

    Any exception is an error, even `SystemExit`, except for `but`. `advice` is what to do about
    some errors, by how they begin.
    """
    try:
        yield
    except (InputError, *OTHERS, but):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is this module's
        ours = Path(__file__).parents[1]
        others = [frame for frame in frames if not Path(frame.filename).is_relative_to(ours)]
        theirs = [frame for frame in others if not _is_library(frame.filename)] or others
        place = f" in {_place(theirs[-1])}".replace(f" {reference},", "") if theirs else ""
        line = theirs[-1].line if theirs else None
        raise LabError(f"{reference} failed{place}: {_what(error, line, advice)}") from error


def _is_library(file: str) -> bool:
    libraries = (sysconfig.get_path("stdlib"), "<frozen ", *_installed())
    return "site-packages" in file or file.startswith(libraries)


def _installed() -> tuple[str, ...]:
    """Folders that packages were installed into, which need not be called site-packages."""
    # As with `pip install --target`, of which clusters put the folder on PYTHONPATH.
    folders = [Path(folder) for folder in sys.path if folder]
    return tuple(f"{folder}/" for folder in folders if any(folder.glob("*.dist-info")))


def _what(error: BaseException, line: str | None, advice: Mapping[str, str] = ADVICE) -> str:
    """The error in words, or with the line of code that raised it if it has none, and the first of
    those that it names as its cause."""
    if isinstance(error, LabError):
        return str(error)
    if _of_environ(error):
        return f"the environment variable {error.args[0]} is not set"
    if wrapped := _of_loader(str(error)):
        return wrapped
    name = type(error).__name__
    if isinstance(error, ZeroDivisionError) and line:  # its text does not say what is zero
        return f"{name}: {error} in `{line}`"
    text = f"{name}: {error}"
    for begin, what_to_do in advice.items():
        if text.startswith(begin):
            return f"{text}; {what_to_do}"
    if not str(error):
        text = f"{name} by `{line}`" if line else name
    cause = error
    while cause.__cause__:
        cause = cause.__cause__
    return text if str(cause) in text else f"{text}, caused by {type(cause).__name__}: {cause}"


def _of_loader(message: str) -> str:
    """The error within the message of torch's that holds a loader process's whole traceback."""
    caught, original, _ = message.partition("\nOriginal Traceback ")
    lines = message.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    text = list(itertools.dropwhile(lambda line: line.startswith(" "), lines))
    if not original or not text:
        return ""
    text[0] = text[0].removeprefix(f"{LabError.__module__}.{LabError.__name__}: ")
    return "\n".join(text) + f" (in {caught.partition(' in ')[2].rstrip('.')})"


def _of_environ(error: BaseException) -> bool:
    """Whether a lookup in `os.environ` raised this, whose only word is the variable's name."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_code is _LOOKUP.__code__


class OwnModel(nn.Module):
    """The module made by a user's factory, its loss, and the location of its equal blocks."""

    def __init__(self, config: PythonModel) -> None:
        super().__init__()
        self.name, self.path = config.factory, config.blocks
        self.network: nn.Module = make(config)
        if not isinstance(self.network, nn.Module):
            kind = type(self.network).__name__
            raise LabError(f"{config.factory} returned {kind!r}, not a torch.nn.Module")
        self.loss_name = config.loss
        self.loss: Callable[..., Any] | None = None
        if config.loss is not None:
            loss = load(config.loss)
            # A class, such as torch.nn:CrossEntropyLoss, stands for its instance.
            self.loss = loss() if isinstance(loss, type) else loss
        if self.path is not None and self.blocks is None:
            lists = [k for k, v in self.network.named_modules() if isinstance(v, nn.ModuleList)]
            what = f"{config.factory} has no ModuleList {self.path!r}"
            raise InputError.of("model", "blocks", what, nearest(self.path, lists))

    @property
    def blocks(self) -> nn.ModuleList | None:
        """The equal blocks, which FSDP and checkpointing take one by one."""
        blocks = dict(self.network.named_modules()).get(self.path) if self.path else None
        return blocks if isinstance(blocks, nn.ModuleList) else None

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch, a scalar tensor."""
        if self.loss is None:
            value = self.network(inputs, targets)
        else:
            output = self.network(inputs)
            value = self.loss(output, targets)
        if not isinstance(value, Tensor) or value.dim():
            advice = "take its mean" if isinstance(value, Tensor) else "return its mean alone"
            raise LabError(
                f"the loss of {self.name} is not a scalar tensor but {_kind(value)}; {advice}"
            )
        if torch.is_grad_enabled() and not value.requires_grad:
            raise LabError(
                f"the loss of {self.name} has no gradient: do not compute it, or what it is made "
                "of, under torch.no_grad() or from detached tensors"
            )
        return value


def build(config: PythonModel) -> OwnModel:
    """The model on this rank; LabError if it cannot be trained or is another one on other ranks."""
    model = OwnModel(config)
    named = dict(model.network.named_parameters())
    if unknown := [name for name, parameter in named.items() if is_lazy(parameter)]:
        raise LabError(
            f"{config.factory} has parameters without a shape ({unknown[0]}), as a LazyLinear has "
            "at first: call the module on a batch in the factory, or give its layers their sizes"
        )
    if empty := [name for name, parameter in named.items() if parameter.is_meta]:
        raise LabError(
            f"{config.factory} has parameters on the device meta ({empty[0]}), which have no "
            "values: make the module on the CPU, from which the lab moves it"
        )
    if not any(parameter.requires_grad for parameter in named.values()):
        raise LabError(
            f"{config.factory} has no parameter that requires a gradient: nothing can be trained"
        )
    _require_same(model.network, config.factory)
    return model


def _require_same(network: nn.Module, name: str) -> None:
    """Raise LabError if ranks made different tensors, which they would wait for in vain."""
    state = [*network.named_parameters(), *network.named_buffers()]
    tensors = [[key, list(tensor.shape), str(tensor.dtype)] for key, tensor in state]
    first, *others = all_gather_object(tensors)
    for rank, other in enumerate(others, start=1):
        if other != first:
            different = [one for one in (*first, *other) if one not in first or one not in other]
            raise LabError(
                f"{name} makes another module on rank {rank} than on rank 0 "
                f"({(different or first)[0][0]}): its parameters and buffers must be the same on "
                "every rank"
            )


def _explained(error: BaseException) -> str:
    """What an error that torch raised says about a user's module; empty if it is none of these."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        scope: dict[str, Any] = frame.f_locals
        model: Any = scope.get("self")
        if isinstance(model, DistributedDataParallel) and NO_GRADIENT in str(error):
            return _without_gradient(model, str(error))
        if frame.f_code is OwnModel.forward.__code__ and "output" in scope:
            failure = f"{type(error).__name__}: {error}".rstrip(".")
            return (
                f"the loss {model.loss_name} failed: {failure}; it was given an output of "
                f"{model.name}, {_kind(scope['output'])}, and targets, {_kind(scope['targets'])}"
            )
    return ""


def _without_gradient(parallel: DistributedDataParallel, message: str) -> str:
    trained = [name for name, one in parallel.module.named_parameters() if one.requires_grad]
    match = WITHOUT.search(message)
    places = [int(place) for place in match[1].split()] if match else []
    names = [trained[place].removeprefix("network.") for place in places if place < len(trained)]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{shown or 'some parameters'} took no part in a step's loss, but DDP waits for the "
        "gradient of every parameter: let all take part in every step, freeze those that never "
        "do (requires_grad_(False)), or train with naive_ddp, zero1 or fsdp"
    )


def _kind(value: object) -> str:
    """`float32 of shape (4, 10)` for a tensor, `a dict` for anything else."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}"


def depends_on_split(model: nn.Module) -> str:
    """Why the loss curve depends on how ranks split the batch, as far as torch's modules show."""
    return ", and ".join(dict.fromkeys(_reasons(model)))


def _reasons(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(
            module, nn.SyncBatchNorm
        ):
            yield BATCH_NORM_BY_RANK
        elif isinstance(module, nn.modules.dropout._DropoutNd) and module.p:
            yield DROPOUT_BY_RANK


def counted_flops(config: PythonModel, inputs: Tensor, targets: Tensor) -> float | None:
    """FLOPs of forward and backward for one sample by torch's counter, which counts products.

    It uses tensors without data, so nothing is computed. None if the module needs data.
    """
    from torch.utils.flop_counter import FlopCounterMode

    try:
        with torch.random.fork_rng(), torch.device("meta"):
            model = OwnModel(config).to("meta")
            with FlopCounterMode(display=False) as counter:
                model(inputs.to("meta"), targets.to("meta")).backward()
    except Exception:  # noqa: BLE001 - whatever a user's code does without data, it may fail at
        return None
    return counter.get_total_flops() / len(inputs) or None


class Items:
    """A torch data set with a length and an index."""

    epochs = True

    def __init__(self, items: Any, name: str) -> None:
        self._items, self._name = items, name
        if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            raise LabError(
                f"{name} returned a {type(items).__name__}, but a data set needs a length and an "
                "index, as the lab itself chooses and batches the samples of a rank"
            )
        with blamed(name):
            self._count = len(items)
        if not self._count:
            raise LabError(f"{name} returned a data set without samples")

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        with blamed(self._name):
            item = self._items[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            length = f" of {len(item)}" if isinstance(item, tuple | list) else ""
            raise LabError(
                f"sample {index} of {self._name} is not a pair of input and target: "
                f"{type(item).__name__}{length}"
            )
        for part, value in zip(("input", "target"), item, strict=True):
            if not _is_number(value):
                kind = getattr(value, "dtype", type(value).__name__)
                raise LabError(
                    f"the {part} of sample {index} of {self._name} is of type {kind}; return a "
                    "tensor, an array or a number"
                )
        return item

    def take(self, indices: Indices) -> Any:
        """Inputs and targets of these samples, each stacked along a new first axis."""
        return self.collate([self[int(index)] for index in indices])

    def collate(self, samples: list[Any]) -> Any:
        """A batch of samples; LabError if they cannot be stacked."""
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:
            raise LabError(f"samples of {self._name} do not make a batch: {error}") from error

    def hashed(self) -> bytes:
        """SHA-256 of HASHED samples, evenly spread, and of their number."""
        content = hashlib.sha256(str(len(self)).encode())
        for index in np.linspace(0, len(self) - 1, min(HASHED, len(self))).astype(int):
            for part in self[int(index)]:
                values = torch.as_tensor(part).detach().numpy()
                content.update(np.ascontiguousarray(values).tobytes())
        return content.digest()


def _is_number(value: object) -> bool:
    """Whether a value is one number or an array of them."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, Tensor | int | float)


def prepare(run: Run, *, pretrained: Path | None, data_root: Path, progress: Progress) -> Dataset:
    """What the user's factory returns; raises LabError for anything but two data sets."""
    config = run.dataset
    assert isinstance(config, PythonData)
    result = make(config, seed=run.seed)
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = "two data sets, one to train on and one held out"
        raise LabError(f"{config.factory} must return {what}, not {type(result).__name__}")
    train, held_out = (Items(items, config.factory) for items in result)
    digest = hashlib.sha256(config.model_dump_json().encode() + train.hashed() + held_out.hashed())
    return Dataset(
        train,
        held_out,
        sha256=digest.hexdigest(),
        description=f"{config.label}, {len(train)} samples and {len(held_out)} held out",
    )
