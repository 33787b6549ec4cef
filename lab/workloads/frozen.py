"""What all configurations have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A strict, immutable configuration without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
