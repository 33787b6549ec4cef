"""The facts of each strategy, in one table that everything outside `worker/strategies/` reads.

A new strategy is an entry here and a module `worker/strategies/<name>.py`. No fact has a default,
so whoever adds a strategy decides each of them, and a forgotten one is a type error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from lab.config.base import check_name
from lab.config.own import Own, check_reference

State = Literal["weights", "gradients", "optimizer"]
Moved = Literal[
    "nothing",
    "gradients",
    "parameters and gradients",
    "activations",
    "what its code sends",
    "what the script sends",
]


@dataclass(frozen=True, kw_only=True)
class StrategyFacts:
    """Facts about a strategy that hold for any model."""

    label: str
    splits: Literal["nothing", "samples", "tensors", "layers"]  # what is divided among the devices
    sharded: frozenset[State]  # of which each data-parallel rank keeps a share
    moves: Moved  # what is sent between devices
    single_process: bool  # one process drives all devices
    gpus_only: bool  # several devices must be GPUs
    partial_gradients: bool  # no rank has all gradients, from which fp16 scales the loss
    compiles: bool  # can call the result of torch.compile like the model
    resumable: bool  # a checkpoint of rank 0 holds the state of all ranks
    emulable: bool  # ranks can sleep for the times of a device instead of computing
    settings: tuple[str, ...]  # the fields of a run that only this strategy reads


# fmt: off
STRATEGIES: dict[str, StrategyFacts] = {
    "single": StrategyFacts(
        label="one device", splits="nothing", sharded=frozenset(), moves="nothing",
        single_process=True, gpus_only=False, partial_gradients=False,
        compiles=True, resumable=True, emulable=True, settings=(),
    ),
    "naive_ddp": StrategyFacts(
        label="naive DDP", splits="samples", sharded=frozenset(), moves="gradients",
        single_process=False, gpus_only=False, partial_gradients=False,
        compiles=True, resumable=True, emulable=True, settings=("flat",),
    ),
    "ddp": StrategyFacts(
        label="DDP", splits="samples", sharded=frozenset(), moves="gradients",
        single_process=False, gpus_only=False, partial_gradients=False,
        compiles=True, resumable=True, emulable=True,
        settings=("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "compression"),
    ),
    "zero1": StrategyFacts(
        label="ZeRO-1", splits="samples", sharded=frozenset({"optimizer"}),
        moves="parameters and gradients",
        single_process=False, gpus_only=False, partial_gradients=True,
        compiles=True, resumable=False, emulable=False, settings=(),
    ),
    "fsdp": StrategyFacts(
        label="FSDP", splits="samples", sharded=frozenset({"weights", "gradients", "optimizer"}),
        moves="parameters and gradients",
        single_process=False, gpus_only=False, partial_gradients=True,
        compiles=False, resumable=True, emulable=False,
        settings=("reshard_after_forward", "shard_size"),
    ),
    "tensor_parallel": StrategyFacts(
        label="tensor parallelism", splits="tensors", sharded=frozenset(), moves="activations",
        single_process=False, gpus_only=False, partial_gradients=True,
        compiles=False, resumable=False, emulable=False, settings=(),
    ),
    "pipeline_parallel": StrategyFacts(
        label="pipelines", splits="layers", sharded=frozenset(), moves="activations",
        single_process=False, gpus_only=False, partial_gradients=True,
        compiles=False, resumable=False, emulable=False, settings=("schedule", "microbatches"),
    ),
    "data_parallel": StrategyFacts(
        label="DataParallel", splits="samples", sharded=frozenset(),
        moves="parameters and gradients",
        single_process=True, gpus_only=True, partial_gradients=False,
        compiles=False, resumable=True, emulable=False, settings=(),
    ),
    "vanilla_data_parallel": StrategyFacts(
        label="vanilla DataParallel", splits="samples", sharded=frozenset(),
        moves="parameters and gradients",
        single_process=True, gpus_only=False, partial_gradients=False,
        compiles=False, resumable=True, emulable=False, settings=(),
    ),
}
# What may be assumed about a user's own strategy.
OWN = StrategyFacts(
    label="its own strategy", splits="samples", sharded=frozenset(), moves="what its code sends",
    single_process=False, gpus_only=False, partial_gradients=False,
    compiles=False, resumable=False, emulable=False, settings=(),
)
# For a script, which alone knows how its ranks cooperate.
SCRIPT = replace(OWN, label="the script's own strategy", moves="what the script sends")
SCRIPT_NAME = "script"
# fmt: on
# Settings that only one strategy reads.
SETTINGS = (*(name for facts in STRATEGIES.values() for name in facts.settings), "own_strategy")


class OwnStrategy(Own):
    """`factory` returns an instance of a subclass of `lab.worker.strategies.base.Strategy`."""

    entry_points: ClassVar = "lab.strategies"


def _strategy(name: str) -> str:
    if name == SCRIPT_NAME:
        return name
    return check_reference(name) if ":" in name else check_name("strategy", name, STRATEGIES)


Strategy = Annotated[str, AfterValidator(_strategy)]
