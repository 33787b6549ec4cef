"""What the parts of a record are made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Part(BaseModel):
    """A part of a record; unknown keys are refused so that a typing error cannot hide a measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Stat(Part):
    """A distribution over steps or rounds: median, 10th and 90th percentile, bootstrap 95 % interval of the median."""

    median: float
    p10: float
    p90: float
    interval: tuple[float, float] | None = Field(description="None where there are too few for one")
