"""The parts of strategies that need no group of ranks."""

from __future__ import annotations

import pkgutil
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import distributed as dist
from torch import nn

from lab.config import models
from lab.config.run import Run
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError
from lab.launch import bench
from lab.worker import strategies
from lab.worker.models.gpt import GPT
from lab.worker.optim import blocks_of, checkpoint_blocks
from lab.worker.strategies import vanilla_data_parallel as vanilla
from lab.worker.strategies.vanilla_data_parallel import (
    DataParallel,
    parallel_apply,
    replica,
    scatter,
)
from lab.worker.strategies.zero1 import Flat

CPU = torch.device("cpu")


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(models.GPT(layers=2, heads=2, width=8, block_size=6), vocab_size=11)


def samples(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 11, (count, 7), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def gradients(model: nn.Module, call: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    call(*samples()).backward()
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_replicas_together_have_the_gradients_of_the_model(devices: int) -> None:
    model = gpt()
    parallel = DataParallel(model, [CPU] * devices, recorder=None)
    assert parallel(*samples()).item() == pytest.approx(model(*samples()).item(), rel=1e-6)
    for actual, expected in zip(gradients(model, parallel), gradients(model, model), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_replica_computes_with_its_own_parameters_and_keeps_the_tie() -> None:
    model = gpt()
    zeros = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    before = model(*samples()).item()
    # Logits that are all equal: the loss is that of guessing.
    assert replica(model, zeros)(*samples()).item() == pytest.approx(
        torch.log(torch.tensor(11.0)).item()
    )
    assert model(*samples()).item() == before


class Normalized(nn.Module):
    """A frozen layer before batch norm, whose running statistics are buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen, self.norm, self.head = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)
        self.frozen.requires_grad_(False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (self.head(self.norm(self.frozen(inputs)))[:, 0] - targets).square().mean()


def test_each_device_has_buffers_of_its_own_and_the_model_keeps_the_first_ones() -> None:
    model, alone = Normalized(), Normalized()
    inputs, targets = torch.randn(8, 5), torch.randn(8)
    DataParallel(model, [CPU, CPU], recorder=None)(inputs, targets)
    alone(inputs[:4], targets[:4])
    for (name, buffer), (_, expected) in zip(
        model.named_buffers(), alone.named_buffers(), strict=True
    ):
        torch.testing.assert_close(buffer, expected, msg=name)
    # A second kind of device, whose tensors have no values here.
    parallel = DataParallel(model, [CPU, torch.device("meta")], recorder=None)
    twin = replica(model, parallel._copies(dict(vanilla._tensors(model)))[1])
    assert {tensor.device.type for tensor in vars(twin.norm)["_buffers"].values()} == {"meta"}
    assert twin.frozen.weight.device.type == twin.norm.weight.device.type == "meta"


def test_what_is_frozen_gets_no_gradient_on_any_device() -> None:
    model = Normalized()
    parallel = DataParallel(model, [CPU, CPU], recorder=None)
    for copies in parallel._copies(dict(vanilla._tensors(model))):
        learning = {name for name, tensor in copies.items() if tensor.requires_grad}
        assert learning == {"norm.weight", "norm.bias", "head.weight", "head.bias"}
    parallel(torch.randn(8, 5), torch.randn(8)).backward()
    assert model.frozen.weight.grad is None and model.head.weight.grad is not None


def test_scatter_divides_the_samples_in_order() -> None:
    parts = scatter(torch.arange(6), [CPU, CPU])
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5]]


class Meeting(nn.Module):
    """Ends only where another replica runs at the same time, with the settings of the caller."""

    def __init__(self, barrier: threading.Barrier) -> None:
        super().__init__()
        self.barrier = barrier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.barrier.wait(timeout=20)
        assert not torch.is_grad_enabled() and torch.is_autocast_enabled("cpu")
        return x + 1


def test_replicas_run_side_by_side_with_the_settings_of_the_caller() -> None:
    barrier = threading.Barrier(2)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = parallel_apply(
            [Meeting(barrier)] * 2, [(torch.zeros(1),), (torch.ones(1),)], [CPU, CPU]
        )
    assert [value.item() for value in outputs] == [1.0, 2.0]


def test_what_a_replica_raises_reaches_the_caller() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        parallel_apply([nn.Linear(2, 2)] * 2, [(torch.ones(1, 3),)] * 2, [CPU, CPU])


def test_checkpointed_blocks_compute_the_same_gradients_twice_over() -> None:
    model, plain = gpt(), gpt()
    passes: list[int] = []
    model.blocks[0].attention.register_forward_pre_hook(lambda module, inputs: passes.append(1))
    names = list(model.state_dict())
    checkpoint_blocks(model)
    assert len(blocks_of(model)) == 2 and list(model.state_dict()) == names
    for actual, expected in zip(gradients(model, model), gradients(plain, plain), strict=True):
        torch.testing.assert_close(actual, expected)
    assert len(passes) == 2


def test_replicas_of_checkpointed_blocks_compute_with_their_own_parameters() -> None:
    model, plain = gpt(), gpt()
    checkpoint_blocks(model)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in model.blocks.named_parameters()}
    tensors = dict(model.named_parameters()) | {f"blocks.{name}": zeros[name] for name in zeros}
    plain.blocks.load_state_dict(zeros)
    assert replica(model, tensors)(*samples()).item() == plain(*samples()).item()


def test_a_model_without_blocks_has_nothing_to_checkpoint() -> None:
    assert blocks_of(nn.Linear(2, 2)) == []
    with pytest.raises(InputError, match="activation_checkpointing"):
        checkpoint_blocks(nn.Linear(2, 2))


def test_every_strategy_of_a_run_has_its_module_and_no_other() -> None:
    modules = {module.name for module in pkgutil.iter_modules(strategies.__path__)}
    assert modules - {"base", "sharded"} == set(STRATEGIES)
    for name in STRATEGIES:
        run = Run.model_validate({"global_batch_size": 8, "strategy": name})
        assert type(strategies.of(run)).__module__ == f"lab.worker.strategies.{name}"


def test_the_factory_of_an_own_strategy_is_called_once_per_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from lab.worker.strategies.base import Strategy\nmade = []\n"
    code += "class Mine(Strategy):\n    def __init__(self):\n        made.append(self)\n"
    (tmp_path / "once_per_run.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    run = Run.model_validate({"global_batch_size": 8, "strategy": "once_per_run:Mine"})
    assert strategies.of(run) is strategies.of(run)
    assert sys.modules["once_per_run"].made == [strategies.of(run)]


def test_losses_are_equal_within_the_tolerance_of_their_precision() -> None:
    runs = {name: bench.BASE | changes for name, changes in bench.cases(quick=True).items()}
    runs = {name: runs[name] for name in ("single", "ddp 2", "zero1 2", "data_parallel 2")}
    answers = {
        "single": {"loss": [2.0, 1.0], "validation_loss": 1.0},
        "ddp 2": {"loss": [2.0, 1.0001], "validation_loss": 1.0},
        "zero1 2": {"loss": [2.0, 1.0], "validation_loss": 1.001},
        "data_parallel 2": {"reason": "no GPU"},
    }
    rows = {
        name: bench._equal_loss(name, Run.model_validate(run), answers[name], answers["single"])
        for name, run in runs.items()
    }
    assert [rows[name].equal for name in runs] == [True, True, False, None]
    assert rows["zero1 2"].difference == pytest.approx(1e-3)
    assert rows["data_parallel 2"].reason == "no GPU" and rows["data_parallel 2"].final_loss is None


def test_the_flat_buffers_of_zero1_have_the_type_of_their_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    exact = [nn.Parameter(torch.tensor([1 / 3], dtype=torch.float64)) for _ in range(2)]
    assert Flat(exact).shard.tolist() == [1 / 3]
    mixed = [*exact, nn.Parameter(torch.ones(1))]
    with pytest.raises(LabError, match="in one buffer, but these are float32 and float64: give"):
        Flat(mixed)
