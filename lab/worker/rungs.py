"""One rank of a rung of the course: calls what a learner's file defines, with only its own data.

`main` reads the rank's task and arrays from its standard input, and leaves an archive of arrays. It
never sees the other ranks' data, so a result that depends on all of it must have been communicated.
The reported calls and times are counted in this process.
"""

from __future__ import annotations

import faulthandler
import importlib
import io
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F  # noqa: N812 torch's own name

from lab.config.run import Run
from lab.worker import strategies
from lab.worker.confine import confine
from lab.worker.context import RankContext
from lab.worker.distributed import process_group
from lab.worker.measure.clock import Clock
from lab.worker.measure.collective_trace import CallRecorder
from lab.worker.measure.overlap import Exposure
from lab.worker.strategies.base import Setup

Arrays = dict[str, Any]
CHECKED_STEPS = 5  # after which parameters are compared
# AdamW's epsilon: with a small one, gradients twice as large would give the same steps.
EPSILON = 0.01
WARM_UP = 2  # steps that are not timed
# Laps of a step, by their place in it; the clock counts from 1.
LAPS = ("", "forward", "backward", "exchange", "clip", "optimizer")


class Recorded:
    """A clock and the calls of one trial."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.recorder = CallRecorder(self.clock)

    def facts(self) -> dict[str, Any]:
        """Calls of the last step, medians of times in s, and the bytes of all steps."""
        step_time = self.clock.read()["step_time"]
        steps = len(step_time)
        rows = [
            [call.operation, call.bytes, _lap(call.position), _lap(call.waited_in)]
            for call in self.recorder.calls
            if call.position[0] == steps - 1
        ]
        times = step_time[min(WARM_UP, steps - 1) :]
        calls = self.recorder.take()
        exposure = Exposure.from_calls([calls], steps=steps)
        return {
            "calls": rows,
            "step_s": float(np.median(times)),
            "total_s": float(np.median(exposure.total[0])),
            "exposed_s": float(np.median(exposure.exposed[0])),
            "bytes": int(calls.bytes.sum()),
            "steps": steps,
        }


def _lap(position: tuple[int, int] | None) -> str:
    return LAPS[position[1]] if position else ""


class Net(nn.Module):
    """Linear layers with tanh in between; called with inputs and targets for the mean loss."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        pairs = itertools.pairwise(widths)
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairs)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean squared error."""
        for layer in self.layers[:-1]:
            inputs = torch.tanh(layer(inputs))
        return F.mse_loss(self.layers[-1](inputs), targets)


def all_reduce(module: ModuleType | None, spec: Mapping[str, Any], arrays: Arrays) -> Iterator[Any]:
    """Sum tensors of several lengths; without a module, with torch's own all-reduce."""
    reduce = module.all_reduce if module else dist.all_reduce
    for name in sorted(arrays):
        recorded = Recorded()
        for _ in range(spec["steps"]):
            tensor = torch.from_numpy(arrays[name].copy())
            recorded.clock.start()
            returned = reduce(tensor)
            recorded.clock.lap("other")
        result = returned if module and isinstance(returned, Tensor) else tensor
        yield recorded.facts(), {"result": result.numpy()}


def strategy(module: ModuleType | None, spec: Mapping[str, Any], arrays: Arrays) -> Iterator[Any]:
    """Train for some steps with each setting of a strategy; without a module, with the lab's own.

    Rank 0 then also trains `single` on the samples of all ranks.
    """
    if module is not None:
        for args in spec["trials"]:
            candidate = getattr(module, spec["needs"])(**args)
            yield _train(candidate, _run(spec, {}), spec, arrays)
        return
    run = _run(spec, spec["own"])
    facts, weights = _train(strategies.of(run), run, spec, arrays)
    if "all_inputs" in arrays:
        whole = {name: arrays[f"all_{name}"] for name in ("inputs", "targets")}
        run = _run({"world_size": 1}, {"strategy": "single"})
        _, of_single = _train(strategies.of(run), run, spec, whole)
        weights = {f"single_{name}": value for name, value in of_single.items()}
    yield facts, weights


def _run(spec: Mapping[str, Any], settings: Mapping[str, Any]) -> Run:
    world_size = spec["world_size"]
    return Run(world_size=world_size, global_batch_size=world_size, weight_decay=0.0, **settings)


def _train(
    strategy: Any, run: Run, spec: Mapping[str, Any], arrays: Arrays
) -> tuple[dict[str, Any], Arrays]:
    torch.manual_seed(spec["seed"] + spec["rank"])  # unequal weights: `wrap` has to send rank 0's
    model = Net(spec["widths"])
    recorded = Recorded()
    clock = recorded.clock
    # A separate clock and no recorder, so that the strategy cannot change what is counted here.
    parallel = strategy.wrap(model, Setup(run, torch.device("cpu"), Clock(), None))
    optimizer = strategy.optimizer(parallel, run)
    for group in optimizer.param_groups:
        group["eps"] = EPSILON
    inputs, targets = (torch.from_numpy(arrays[name]) for name in ("inputs", "targets"))
    result: Arrays = {}
    for step in range(len(inputs)):
        clock.start()
        loss = parallel(inputs[step], targets[step])
        clock.lap("forward")
        loss.backward()
        clock.lap("backward")
        strategy.synchronize(parallel)
        clock.lap("backward")
        strategy.clip(parallel, run.grad_clip)
        clock.lap("optimizer")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clock.lap("optimizer")
        if step + 1 == CHECKED_STEPS:
            weights = strategy.unwrap(parallel).parameters()
            result = {f"p{place}": p.detach().numpy().copy() for place, p in enumerate(weights)}
    states = [value for state in optimizer.state.values() for value in state.values()]
    elements = sum(v.numel() for v in states if torch.is_tensor(v) and v.dim())
    return recorded.facts() | {"state": elements}, result


def linear(module: ModuleType | None, spec: Mapping[str, Any], arrays: Arrays) -> Iterator[Any]:
    """Train two matrices with a GELU in between, of which this rank holds its parts."""
    column = module.column if module else F.linear
    row = module.row if module else F.linear
    names = ("column_weight", "column_bias", "row_weight", "row_bias")
    weights = [torch.from_numpy(arrays[name].copy()).requires_grad_() for name in names]
    recorded = Recorded()
    result: Arrays = {}
    for step in range(CHECKED_STEPS):
        inputs = torch.from_numpy(arrays["inputs"][step].copy()).requires_grad_()
        recorded.clock.start()
        hidden = F.gelu(column(inputs, weights[0], weights[1]))
        output = row(hidden, weights[2], weights[3])
        recorded.clock.lap("forward")
        F.mse_loss(output, torch.from_numpy(arrays["targets"][step])).backward()
        recorded.clock.lap("backward")
        with torch.no_grad():
            for weight in weights:
                if weight.grad is not None:
                    weight -= 0.1 * weight.grad
                    weight.grad = None
        recorded.clock.lap("optimizer")
        grad = torch.zeros_like(inputs) if inputs.grad is None else inputs.grad
        result |= {f"output{step}": output.detach().numpy(), f"input_grad{step}": grad.numpy()}
    result |= {name: w.detach().numpy() for name, w in zip(names, weights, strict=True)}
    yield recorded.facts(), result


def order(module: ModuleType | None, spec: Mapping[str, Any], arrays: Arrays) -> Iterator[Any]:
    """Run a pipeline stage in the order given by the file, with real messages."""
    rank, stages = spec["rank"], spec["world_size"]
    micro_batches = spec["micro_batches"]
    assert module is not None
    passes = [(str(what), int(which)) for what, which in module.order(rank, stages, micro_batches)]
    # Before it is tried, so that whoever ends a hang can read it.
    sys.stdout.write(json.dumps(passes))
    sys.stdout.flush()
    weight = torch.from_numpy(arrays["weight"].copy()).requires_grad_()
    activations: dict[int, tuple[Tensor, Tensor]] = {}
    sent: list[Any] = []
    recorded = Recorded()
    recorded.clock.start()

    def send(tensor: Tensor, to: int, tag: int) -> None:
        sent.append((dist.isend(tensor, to, tag=tag), tensor))

    for what, which in passes:
        if what == "forward":
            inputs = torch.from_numpy(arrays["inputs"][which].copy())
            if rank:
                dist.recv(inputs, rank - 1, tag=which)
                inputs.requires_grad_()
            output = torch.tanh(inputs @ weight)
            activations[which] = inputs, output
            if rank < stages - 1:
                send(output.detach(), rank + 1, which)
        else:
            inputs, output = activations.pop(which)
            gradient = torch.empty_like(output)
            if rank < stages - 1:
                dist.recv(gradient, rank + 1, tag=micro_batches + which)
            else:
                gradient = 2 * (output.detach() - torch.from_numpy(arrays["targets"][which]))
            output.backward(gradient)
            if rank:
                assert inputs.grad is not None
                send(inputs.grad, rank - 1, micro_batches + which)
    for work, _ in sent:
        work.wait()
    recorded.clock.lap("other")
    codes = [[what != "forward", which] for what, which in passes]
    grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
    yield recorded.facts(), {"order": np.array(codes, dtype=np.int64), "grad": grad.numpy()}


def stages(module: None, spec: Mapping[str, Any], arrays: Arrays) -> Iterator[Any]:
    """The gradients of a pipeline's stages, computed in one process that holds them all."""
    weights = [torch.from_numpy(weight).requires_grad_() for weight in arrays["weights"]]
    outputs = torch.from_numpy(arrays["inputs"])
    for weight in weights:
        outputs = torch.tanh(outputs @ weight)
    (outputs - torch.from_numpy(arrays["targets"])).square().sum().backward()
    gradients = [np.zeros(0) if w.grad is None else w.grad.numpy() for w in weights]
    yield {}, {f"grad{stage}": gradient for stage, gradient in enumerate(gradients)}


TASKS: dict[str, Callable[..., Iterator[Any]]] = {
    task.__name__: task for task in (all_reduce, strategy, linear, order, stages)
}


def main() -> None:
    """Do the task on standard input, and exit with status 1 if the file fails."""
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as archive:
        arrays = dict(archive)
    spec = json.loads(str(arrays.pop("spec")))
    rank, folder = spec["rank"], Path(spec["folder"])
    # Opened before the process is confined, as it may not open files for writing after that.
    result = (folder / f"rank{rank}.npz").open("wb")
    stacks = (folder / f"rank{rank}.stack").open("w")
    if spec["task"] == "strategy":
        # The optimizers import it on first use, and it writes files.
        importlib.import_module("torch._dynamo")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # so that rounding cannot explain a difference
    context = RankContext(
        rank=rank,
        world_size=spec["world_size"],
        local_rank=rank,
        device="cpu",
        cores=(),
        threads=1,
        cluster="local",
        rendezvous=folder / "rendezvous",
        timeout_s=10 * spec["limit_s"],
    )
    with process_group(context, device=torch.device("cpu")):
        dist.barrier()
        if spec["confined"]:
            confine()
        # Without exit: the others would fail as their peer is gone, before they leave their stacks.
        faulthandler.dump_traceback_later(spec["limit_s"], file=stacks)
        save: Arrays = {}
        try:
            module = _load(spec) if "source" in spec else None
            for number, (facts, values) in enumerate(TASKS[spec["task"]](module, spec, arrays)):
                save[f"{number}/facts"] = np.array(json.dumps(facts))
                save |= {f"{number}/{name}": value for name, value in values.items()}
        except BaseException as error:  # noqa: BLE001 whatever a learner's file raises is reported
            save = {"error": np.array(json.dumps(_error_report(error, spec)))}
        np.savez(result, **save)
        result.flush()
        if "error" in save:
            os._exit(1)  # the other ranks may be gone or stuck
        faulthandler.cancel_dump_traceback_later()


def _load(spec: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(Path(spec["file"]).stem)
    module.__file__ = spec["file"]
    sys.modules[module.__name__] = module
    exec(compile(spec["source"], spec["file"], "exec"), module.__dict__)  # noqa: S102 confined
    return module


def _error_report(error: BaseException, spec: Mapping[str, Any]) -> dict[str, Any]:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == spec.get("file")
    ]
    if isinstance(error, SyntaxError) and not lines:
        lines = [error.lineno]
    line = lines[-1] if lines else None
    return {"type": type(error).__name__, "message": str(error)[:500], "line": line}
