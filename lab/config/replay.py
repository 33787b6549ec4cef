"""What a profile with `executor: replay` holds: rows of a published table, not a machine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from lab.config.base import Frozen

NOTICE = "Replay of published numbers: nothing was measured here"


class Row(BaseModel):
    """One published time: `step_s` of the step in s, a list where each rank has its own.

    Any other key is a field of a run or of its model, and the run must have that value:
    `{layers: 12, world_size: 2}`.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    world_size: int = Field(ge=1)
    steps: int = Field(ge=1)  # over which the table's time was taken
    step_s: float | list[float]

    @property
    def times(self) -> list[float]:
        """By rank, in s; the same for all where the table has only one."""
        return self.step_s if isinstance(self.step_s, list) else [self.step_s] * self.world_size

    @property
    def where(self) -> dict[str, Any]:
        """What a run must have."""
        return {"world_size": self.world_size, **(self.model_extra or {})}


class AllReduce(Frozen):
    """A published time of an all-reduce, in s."""

    world_size: int = Field(ge=2)
    bytes: int = Field(gt=0)
    seconds: float = Field(gt=0)


class Published(Frozen):
    """A published table: its source, the device, what must be known to read it, its rows."""

    source: str = Field(min_length=1, max_length=500)
    gpu: str = Field(min_length=1, max_length=100)
    note: str = Field(default="", max_length=500)
    rows: list[Row] = []
    all_reduce: list[AllReduce] = []

    @property
    def largest(self) -> int:
        """The most ranks of any row."""
        rows: list[Row | AllReduce] = [*self.rows, *self.all_reduce]
        return max((row.world_size for row in rows), default=1)
