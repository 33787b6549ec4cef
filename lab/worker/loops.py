"""Training loops to compare the lab's with: the plainest, nanoGPT's, Lightning Fabric's.

Each uses the same batches, learning rates and clipping as the lab's loop, and measures nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lab.config.models import GPT
from lab.worker import models
from lab.worker.data.loader import FastLoader
from lab.worker.distributed import RankJob
from lab.worker.optim import autocast, learning_rate, optimizer_for

# Modules by package. Fabric's own first: `lightning` also loads torchmetrics and torchvision.
FABRICS = {"lightning_fabric": "lightning_fabric", "lightning": "lightning.fabric"}


class PlainLoop:
    """The training of `train` without the measuring, as a user would write it."""

    def __init__(self, job: RankJob) -> None:
        self.run, self.device, self.step = job.run, job.device, 0
        torch.manual_seed(self.run.seed)  # as in `train`, because the losses of both must agree
        self.model = self.build(job).to(self.device)
        torch.manual_seed(self.run.seed + 1 + job.context.rank)  # dropout differs between ranks
        wrapped = self.wrap(self.model)
        self.optimizer = self.optimizer_for(self.model)
        self.forward: Any = torch.compile(wrapped) if self.run.compile else wrapped
        self.loader = FastLoader(job.dataset.train, run=self.run, rank=job.context.rank)
        self.losses: list[Tensor] = []

    def build(self, job: RankJob) -> nn.Module:
        """The model."""
        return models.build(job.run, job.dataset)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model as the loop calls it."""
        return model

    def optimizer_for(self, model: nn.Module) -> torch.optim.Optimizer:
        """Its optimizer."""
        return optimizer_for(model, self.run)

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch."""
        with autocast(self.run, self.device):
            loss: Tensor = self.forward(inputs, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """The gradients of the loss."""
        loss.backward()

    def advance(self) -> None:
        """One step."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.run, self.step)
        batch = self.loader.micro_batch(self.step, 0)
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        loss = self.loss(*batch.to(self.device))
        self.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.run.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.detach())  # read at the end, to avoid waiting for a GPU
        self.step += 1


class PlainDdpLoop(PlainLoop):
    """The same with torch's DDP."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model in DDP with default settings, except for where gradients are stored."""
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


class NanoGptLoop(PlainLoop):
    """nanoGPT's model and optimizer, from its `model.py`, in the order of its `train.py`."""

    def __init__(self, job: RankJob, path: Path) -> None:
        self.module = _load(path)
        super().__init__(job)

    def build(self, job: RankJob) -> nn.Module:
        """A GPT of the run's sizes, with biases as the lab's has them."""
        config = job.run.architecture
        assert isinstance(config, GPT)
        settings = self.module.GPTConfig(
            block_size=config.block_size,
            vocab_size=job.dataset.vocab_size,
            n_layer=config.layers,
            n_head=config.heads,
            n_embd=config.width,
            dropout=config.dropout,
            bias=True,
        )
        model: nn.Module = self.module.GPT(settings)
        return model

    def optimizer_for(self, model: Any) -> torch.optim.Optimizer:
        """The optimizer as the model configures it."""
        optimizer: torch.optim.Optimizer = model.configure_optimizers(
            self.run.weight_decay, self.run.learning_rate, (0.9, 0.95), self.device.type
        )
        return optimizer

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The second value that the model returns; its own batches have no gaps."""
        with autocast(self.run, self.device):
            loss: Tensor = self.forward(inputs.contiguous(), targets.contiguous())[1]
        return loss


class FabricLoop(PlainLoop):
    """The plain loop's model and optimizer, set up by Lightning Fabric."""

    PRECISIONS = {"fp32": "32-true", "tf32": "32-true", "bf16": "bf16-mixed"}

    def __init__(self, job: RankJob) -> None:
        fabric = importlib.import_module(FABRICS[_fabric()]).Fabric
        accelerator = "cuda" if job.device.type == "cuda" else "cpu"
        precision = self.PRECISIONS[job.run.stated.precision]
        self.fabric = fabric(accelerator=accelerator, devices=1, precision=precision)
        super().__init__(job)
        wrapped, self.optimizer = self.fabric.setup(self.model, self.optimizer)
        self.forward = torch.compile(wrapped) if self.run.compile else wrapped

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss, computed in Fabric's own autocast."""
        loss: Tensor = self.forward(inputs, targets)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass through Fabric."""
        self.fabric.backward(loss)


def peers(job: RankJob, nanogpt: Path | None) -> dict[str, PlainLoop]:
    """Third-party loops by name: nanoGPT's if its `model.py` is given, Fabric's if installed."""
    loops: dict[str, PlainLoop] = {}
    if nanogpt is not None:
        loops["nanoGPT"] = NanoGptLoop(job, nanogpt)
    if _fabric():
        loops["Lightning Fabric"] = FabricLoop(job)
    return loops


def _fabric() -> str:
    """The installed package that provides Fabric; empty without one."""
    return next((package for package in FABRICS if importlib.util.find_spec(package)), "")


def _load(path: Path) -> ModuleType:
    """Load a file as a module."""
    loader = SourceFileLoader("nanogpt_model", str(path))
    module = ModuleType(loader.name)
    sys.modules[loader.name] = module  # its dataclass looks up its module there
    loader.exec_module(module)
    return module
