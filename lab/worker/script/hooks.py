"""What torch reveals about a script's steps: hooks on optimizers, modules, loaders and DDP.

A step lasts from the end of one optimizer step to the end of the next. Hooks only take marks of the
clock; nothing that the script computes changes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import get_ident
from typing import Any, NoReturn, Self
from weakref import WeakSet

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, dataloader

from lab.errors import LabError
from lab.formatting import count
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder, untraced
from lab.worker.measure.ddp_hook import BucketRecorder, Sent
from lab.worker.patch import around, replaced

# How often a script may catch its end, as to save its state, without being taken for a loop.
CAUGHT = 3
CATCHES = "it catches SystemExit, by which it is ended (`except Exception:` catches errors alone)"
ENDS_THREAD = "SystemExit, by which it is ended, ends only the thread in which it trains"
# Levels below the outermost modules on which those that a script calls are looked for.
DEEPEST = 3


class StepsDone(SystemExit):
    """Raised in a script that has made its steps, which ends it as `sys.exit()` would."""


class _Mark:
    """A module's hook, of which a file that the script saves the module to holds nothing."""

    def __init__(self, mark: Callable[..., None]) -> None:
        self._mark = mark

    def __call__(self, *arguments: Any) -> None:
        self._mark(*arguments)

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # A hook without effect, which whoever loads the file has without the lab.
        return getattr, (nullcontext(), "__exit__")


class StepRecorder:
    """Marks the phases of a script's steps on a clock; `on_step` is called at the end of each.

    The first optimizer that steps is the one whose steps count, unless the script names another
    with `lab.instrument` or, without any, marks the ends of its steps itself. Nested phases count
    for the innermost, except for the forward passes that a backward pass repeats and whatever a
    hook sees in a phase that the script itself marks. `on_caught` is called with the reason if
    StepsDone does not end the script, and should not return.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        world_size: int,
        on_step: Callable[[int], None],
        on_caught: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.clock, self.world_size = clock, world_size
        self._on_step, self._on_caught = on_step, on_caught
        self.samples_per_step: int | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.optimizers: dict[int, torch.optim.Optimizer] = {}
        self.inner: set[int] = set()  # of them, by id, those that step within another's step
        self.modules: list[nn.Module] = []  # whose calls are the forward pass
        self.called: set[nn.Module] = set()  # of them and their parts
        self.phases: set[str] = set()  # that were observed
        self.steps = 0
        self.backend: str | None = None
        self.buckets: BucketRecorder | None = None
        self.hidden = False  # whether a DDP sends what nobody sees
        self.passes: list[int] = []  # the number of the backward pass that sent each bucket
        self.calls = CallRecorder(clock) if world_size > 1 else None
        self._inside: list[str] = []  # the current phases, innermost last
        self._marked = 0  # current phases that the script marks itself
        self._backwards = 0  # passes begun so far
        # Optimizers within a step, as one may wrap another, and whether that began a phase.
        self._stepping: list[tuple[torch.optim.Optimizer, bool]] = []
        self._finds_modules = False  # as the script does not say what its forward pass is
        self._deepest: list[nn.Module] = []  # of the modules watched, on their level
        self._level = 0
        # Optimizers that a recreated one replaced; None if none may be.
        self._replaced: WeakSet[torch.optim.Optimizer] | None = WeakSet()
        self._group: Any = None  # of the DDP whose buckets are recorded
        self._done = False
        self._ends = 0  # how often StepsDone was raised
        self._main = self._thread = get_ident()  # in which the script began, and in which it trains

    # Called by a script through lab.instrument.

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Count the time inside as this phase, whatever else hooks see there.

        Within a compiled function it does nothing, as it would break the graph.
        """
        return nullcontext() if torch.compiler.is_compiling() else self._marking(name)

    @contextmanager
    def _marking(self, name: str) -> Iterator[None]:
        entered = self._enter(name)
        self._marked += 1
        try:
            yield
        finally:
            self._marked -= 1
            self._leave(entered)

    def count_steps_of(self, optimizer: Any) -> None:
        """Count the steps of this optimizer as those of the script."""
        self.optimizer, self._replaced = _innermost(optimizer), None

    def end_step(self) -> None:
        """End a step of a script without an optimizer of torch's; LabError if it has one."""
        if self.optimizers:
            (first, *_) = self.optimizers.values()
            raise LabError(
                f"meter.end_step() is for scripts without an optimizer of torch.optim: the steps "
                f"of {type(first).__name__} end those of this one"
            )
        self._end_lap()
        if self.steps == 0:
            self._begin()
        self._count_step()

    def watch(self, model: Any) -> None:
        """Treat the calls of this module as the forward pass."""
        if isinstance(model, nn.Module):
            self._hook(model)

    @property
    def weights(self) -> list[torch.Tensor]:
        """The parameters of what the script trains: updated ones, and frozen ones beside them.

        If its optimizers update copies, or none is torch's, only those of the modules it calls.
        """
        trainers = self.optimizers.values()
        # By id, as several optimizers or modules may share parameters.
        updated = {id(one): one for trainer in trainers for one in parameters_of(trainer)}
        own = {id(one): one for module in self.called for one in module.parameters()}
        whole = updated | own if updated.keys() & own.keys() else own or updated
        return list(whole.values())

    # Called by torch's hooks.

    def _enter(self, phase: str) -> bool:
        if self._is_elsewhere(phase):
            return False
        repeated = phase in self._inside or (phase == "forward" and "backward" in self._inside)
        self._backwards += phase == "backward" and not repeated
        if self._done:
            self._end()
        if repeated or self._marked:
            return False
        self._end_lap()
        self._inside.append(phase)
        return True

    def _is_elsewhere(self, phase: str) -> bool:
        """Whether this is another thread than the one that trains, such as one that loads data."""
        if phase in ("data", "forward"):
            return get_ident() != self._thread
        # A backward pass on a GPU has threads of its own.
        if not self._inside:
            self._thread = get_ident()
        return False

    def _end_lap(self) -> None:
        """Count the time since the last mark as the current phase."""
        if self.clock.position()[0] < 0:
            self.clock.start()
        self.clock.lap(self._inside[-1] if self._inside else "other")

    def _leave(self, entered: bool) -> None:
        if entered:
            phase = self._inside.pop()
            self.clock.lap(phase)
            self.phases.add(phase)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with its calls timed as this phase."""
        return around(function, self._timed, phase)

    def _timed(
        self, function: Callable[..., Any], phase: str, *arguments: Any, **options: Any
    ) -> Any:
        entered = self._enter(phase)
        try:
            return function(*arguments, **options)
        finally:
            self._leave(entered)

    def before_step(
        self, optimizer: torch.optim.Optimizer, arguments: Any, options: Any
    ) -> tuple[Any, Any] | None:
        """Note that an optimizer begins a step; returns its arguments if they are to be others."""
        if self.optimizer is None:
            self.optimizer = optimizer
        self._stepping.append((optimizer, self._enter("optimizer")))
        # A closure's time is not the optimizer's, even where its forward pass is not seen.
        _, *rest = arguments
        if rest and callable(rest[0]):
            return (optimizer, self.timed("other", rest[0]), *rest[1:]), options
        if callable(closure := options.get("closure")):
            return arguments, options | {"closure": self.timed("other", closure)}
        return None

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Note that an optimizer has made a step."""
        if self._stepping and self._stepping[-1][0] is optimizer:
            self._leave(self._stepping.pop()[1])
        if self._stepping:
            self.inner.add(id(optimizer))
        is_new = id(optimizer) not in self.optimizers
        if is_new and self._replaces(optimizer):
            self._replace(optimizer)
        self.optimizers[id(optimizer)] = optimizer
        if self.steps == 0 and optimizer is self.optimizer:
            self._begin()
        elif is_new and self._finds_modules:
            self._hook_trained_by(optimizer)
        if optimizer is self.optimizer:
            self._count_step()

    def _count_step(self) -> None:
        if self.steps and self._finds_modules:
            self._hook_parts()
        self.steps += 1
        self._on_step(self.steps)
        if self._done:
            self._end()
        self.clock.start()

    def _replaces(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this is the counted one recreated, as in every epoch or after unfreezing."""
        counted = self.optimizer
        if self._replaced is None or self._stepping or counted is None or self.steps == 0:
            return False
        own = set(map(id, parameters_of(counted)))
        return type(optimizer) is type(counted) and any(
            id(p) in own for p in parameters_of(optimizer)
        )

    def _replace(self, optimizer: torch.optim.Optimizer) -> None:
        """Count the steps of this optimizer instead, unless the script still uses the other."""
        assert self.optimizer is not None and self._replaced is not None
        if optimizer in self._replaced:
            self._replaced = None
        else:
            self._replaced.add(self.optimizer)
            # Its state must not stay in memory, nor count.
            del self.optimizers[id(self.optimizer)]
        self.optimizer = optimizer

    def finish(self) -> None:
        """End the script after the current step."""
        self._done = True

    def _end(self) -> NoReturn:
        self._ends += 1
        in_thread = self._main != self._thread == get_ident()  # which would end alone
        if in_thread or self._ends > CAUGHT:
            self._on_caught(ENDS_THREAD if in_thread else CATCHES)
        raise StepsDone

    def _begin(self) -> None:
        """Learn from the first step whether ranks form a group and which modules train."""
        has_group = dist.is_available() and dist.is_initialized()
        if has_group and (ranks := dist.get_world_size()) != self.world_size:
            raise LabError(
                f"the script forms a process group of {count(ranks, 'rank')}, but is measured "
                f"on {self.world_size}: let the lab start the ranks, as torchrun does, and set "
                "world_size (--ranks of `lab measure`) to their number"
            )
        if not has_group and self.world_size > 1:
            raise LabError(
                f"{self.world_size} ranks took a step without a process group, so each trains "
                "alone; call torch.distributed.init_process_group, give a framework that does so "
                "the number of ranks (such as by an argument {world_size}), or measure it on one "
                "rank"
            )
        # The module named by the script may be called only through a compiled one.
        self._finds_modules = "forward" not in self.phases
        if self._finds_modules:
            self._hook_trained_by(*self.optimizers.values())
        if has_group:
            self.backend = _backend_of(self.weights)

    def _hook_trained_by(self, *trainers: torch.optim.Optimizer) -> None:
        modules = outermost([one for trainer in trainers for one in parameters_of(trainer)])
        # An optimizer may update copies of parameters, as those of DeepSpeed and Megatron do.
        for module in modules or ([] if self.modules else outermost()):
            if module not in self.modules:
                self._hook(module)
                self._deepest.append(module)

    def _hook_parts(self) -> None:
        """Watch the parts of modules that are never called, such as a list of layers.

        Lightning does not call its own module on one rank either.
        """
        self._level += 1
        uncalled = [module for module in self._deepest if module not in self.called]
        if self._level > DEEPEST or not uncalled:
            return
        trained = set(map(id, self.weights))
        parts = [part for module in uncalled for part in module.children()]
        self._deepest = [p for p in parts if any(id(one) in trained for one in p.parameters())]
        for part in self._deepest:
            self._watch_calls(part)

    def _hook(self, module: nn.Module) -> None:
        self.modules.append(module)
        self._watch_calls(module)

    def _watch_calls(self, module: nn.Module) -> None:
        if (compiled := module._compiled_call_impl) is not None:
            # Hooks would be compiled with it and break its graph.
            module._compiled_call_impl = around(compiled, self._timed_forward, module)
            return
        entered: list[bool] = []

        # Nothing is timed within a compiled function, as that would break its graph.
        def before(module: nn.Module, _: Any) -> None:
            if not torch.compiler.is_compiling():
                entered.append(_trains(module) and self._enter("forward"))
                if entered[-1]:
                    self.called.add(module)

        def after(*_: Any) -> None:
            if not torch.compiler.is_compiling() and entered:
                self._leave(entered.pop())

        module.register_forward_pre_hook(_Mark(before))
        # Even if the call fails, as a script may continue from there.
        module.register_forward_hook(_Mark(after), always_call=True)

    def _timed_forward(
        self, function: Callable[..., Any], module: nn.Module, *arguments: Any, **options: Any
    ) -> Any:
        if torch.compiler.is_compiling() or not _trains(module):
            return function(*arguments, **options)
        self.called.add(module)
        return self._timed(function, "forward", *arguments, **options)

    def record_buckets(self, parallel: DistributedDataParallel) -> None:
        """Record the buckets of a DDP, unless the script has registered its own hook."""
        if self.world_size == 1 or getattr(parallel, "_comm_hooks", None):
            return
        first = self.buckets or BucketRecorder(self.clock)
        # Another group's buckets come in an independent order.
        if self.buckets is not None and parallel.process_group is not self._group:
            return
        first.exchange = partial(self._all_reduce, parallel.process_group)
        try:
            parallel.register_comm_hook(first, BucketRecorder.send)
        except RuntimeError:  # it has a C++ hook, which Python cannot see
            self.hidden = True
            return
        parallel._comm_hooks.clear()  # what copies and files of the module would hold
        self.buckets, self._group = first, parallel.process_group

    def _all_reduce(self, group: Any, bucket: GradBucket) -> Sent:
        """Do what DDP does without a hook: average the gradients over the ranks of its group."""
        self.passes.append(self._backwards)
        with untraced():
            return Sent(allreduce_hook(group, bucket), bucket.buffer().nbytes)


def _backend_of(trained: list[torch.Tensor]) -> str:
    """What the default group sends tensors like the trained ones with; it may have several."""
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    device = next((one.device.type for one in trained), usual)
    by_device = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
    return by_device.get(device, str(dist.get_backend()))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The parameters that an optimizer updates."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _trains(module: nn.Module) -> bool:
    # Lightning leaves its wrapper, but not what is in it, in evaluation mode after a validation.
    return torch.is_grad_enabled() and any(one.training for one in module.modules())


def _innermost(optimizer: Any) -> Any:
    """The torch optimizer under the wrappers of accelerate and Lightning."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None and inner is not optimizer:
        optimizer = inner
    return optimizer


def outermost(parameters: list[torch.Tensor] | None = None) -> list[nn.Module]:
    """The outermost modules that hold one of these parameters, by default any that is trained."""
    ids = set(map(id, parameters or ()))

    def counts(parameter: torch.Tensor) -> bool:
        return parameter.requires_grad if parameters is None else id(parameter) in ids

    # By type, as asking a library's lazily loaded module for its class would load it.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)]
    holders = [one for one in modules if any(map(counts, one.parameters()))]
    # The compiler's own copies, unless a script trains one that it traced itself.
    holders = [one for one in holders if not isinstance(one, GraphModule)] or holders
    inner = {id(child) for one in holders for child in one.modules() if child is not one}
    return [one for one in holders if id(one) not in inner]


@contextmanager
def installed(recorder: StepRecorder) -> Iterator[None]:
    """Make torch report every step to the recorder."""
    # A script may compile the function that calls these: they run all the same, outside its graph.
    disable: Any = torch.compiler.disable
    backward = recorder.timed("backward", torch.autograd.backward)
    ddp: Any = DistributedDataParallel
    loaders: Any = (DataLoader, dataloader._BaseDataLoaderIter)
    with (
        optimizers.register_optimizer_step_pre_hook(disable(recorder.before_step)),
        optimizers.register_optimizer_step_post_hook(disable(recorder.after_step)),
        replaced(
            (torch.autograd, "backward", disable(backward)),
            (loaders[0], "__iter__", recorder.timed("data", loaders[0].__iter__)),
            (loaders[1], "__next__", recorder.timed("data", loaders[1].__next__)),
            (ddp, "__init__", around(ddp.__init__, _announced, recorder.record_buckets)),
        ),
    ):
        yield


def _announced(
    construct: Callable[..., None],
    announce: Callable[[DistributedDataParallel], None],
    parallel: DistributedDataParallel,
    *arguments: Any,
    **options: Any,
) -> None:
    """Construct a DDP, which is announced when it is first called."""
    construct(parallel, *arguments, **options)

    # Not before, as the script may still register a hook, and DDP takes only one.
    def on_first_call(module: nn.Module, _: Any) -> None:
        handle.remove()
        announce(parallel)

    handle = parallel.register_forward_pre_hook(torch.compiler.disable(on_first_call))
