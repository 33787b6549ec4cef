"""What all configurations have in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Quantization = Literal[
    "none", "bf16", "int8_dynamic", "int8_weight_only", "int4_weight_only", "fp8"
]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...],
    Field(strict=False, min_length=1, max_length=20),
]


class Frozen(BaseModel):
    """A strict, immutable configuration without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
