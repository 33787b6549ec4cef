"""Ways to train in parallel, one module each."""

from __future__ import annotations

from lab.errors import InputError, Problem, nearest
from lab.worker.strategies.base import Single, Strategy
from lab.worker.strategies.data_parallel import DataParallelism, VanillaDataParallelism
from lab.worker.strategies.ddp import Ddp
from lab.worker.strategies.fsdp import Fsdp
from lab.worker.strategies.naive_ddp import NaiveDdp
from lab.worker.strategies.pipeline_parallel import PipelineParallelism
from lab.worker.strategies.tensor_parallel import TensorParallelism
from lab.worker.strategies.zero1 import Zero1

STRATEGIES: dict[str, Strategy] = {
    "single": Single(),
    "naive_ddp": NaiveDdp(),
    "ddp": Ddp(),
    "zero1": Zero1(),
    "fsdp": Fsdp(),
    "tensor_parallel": TensorParallelism(),
    "pipeline_parallel": PipelineParallelism(),
    "data_parallel": DataParallelism(),
    "vanilla_data_parallel": VanillaDataParallelism(),
}


def get(name: str) -> Strategy:
    """The strategy of this name; raises InputError with the nearest one."""
    if name not in STRATEGIES:
        raise InputError(
            "strategy", [Problem("strategy", f"{name!r} is no strategy", nearest(name, STRATEGIES))]
        )
    return STRATEGIES[name]
