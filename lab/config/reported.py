"""ReportedRun: a configuration of which somebody's table says only some."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Self

from lab.config.run import Run


class ReportedRun(Run):
    """A configuration in a table of others: what the table does not say is None, never a default.

    It is made with `of` alone, which skips the checks of a run that can be started.
    """

    configuration: str = ""

    @classmethod
    def of(cls, configuration: str, **known: Any) -> Self:
        """The configuration of this name, with those fields of a run that are known."""
        fields: dict[str, Any] = dict.fromkeys(Run.model_fields)
        return cls.model_construct(None, **fields | known, configuration=configuration)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """None: nobody starts it, and nobody knows all of it."""
        return iter(())

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of its name and of what is known of it."""
        return hashlib.sha256(repr(sorted(self._known.items())).encode()).hexdigest()[:10]

    @property
    def _known(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in (*Run.model_fields, "configuration")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def names(self) -> dict[str, Any]:
        """Model and data set as the table calls them."""
        return {"model": self.model, "data": self.data}

    @property
    def label_parts(self) -> list[str]:
        """Its name and its ranks."""
        return [*filter(None, [self.configuration]), f"x{self.world_size}"]

    @property
    def label(self) -> str:
        """Its name and its ranks: `batch 64, ddp x4`."""
        return " ".join(self.label_parts)
