"""ReportedRun: a configuration of which somebody's table says only some."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from lab.config.run import Run, Stated

# What any run may leave open, None then: of a table all other fields are left out.
OPEN = Stated._fields


class ReportedRun(Run):
    """A configuration in a table of others: what the table does not say has no value, no default.

    Batches and precision are None then, as every run may leave them open; any other field that is
    read raises AttributeError, so that nothing takes None for a number. It is made with `of`
    alone, which skips the checks of a run that can be started.
    """

    configuration: str = ""

    @classmethod
    def of(cls, configuration: str, **known: Any) -> Self:
        """The configuration of this name, with those fields of a run that are known."""
        made = cls.model_construct(None, configuration=configuration)
        for name in Run.model_fields:
            made.__dict__.pop(name, None)  # its default
        made.__dict__.update(dict.fromkeys(OPEN) | known)
        return made

    if not TYPE_CHECKING:  # to a type checker every field is there

        def __getattr__(self, name: str) -> Any:
            """Say that the table leaves a field open."""
            if name in Run.model_fields:
                raise AttributeError(f"{self.label}: its table does not say {name}")
            return super().__getattr__(name)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """None: nobody starts it, and nobody knows all of it."""
        return iter(())

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of its name and of what is known of it."""
        return hashlib.sha256(repr(sorted(self._known.items())).encode()).hexdigest()[:10]

    @property
    def _known(self) -> dict[str, Any]:
        values = {name: self.__dict__.get(name) for name in (*Run.model_fields, "configuration")}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def names(self) -> dict[str, Any]:
        """Model and data set as the table calls them."""
        return {"model": self._known.get("model"), "data": self._known.get("data")}

    @property
    def label_parts(self) -> list[str]:
        """Its name and its ranks."""
        return [*filter(None, [self.configuration]), f"x{self.world_size}"]

    @property
    def label(self) -> str:
        """Its name and its ranks: `batch 64, ddp x4`."""
        return " ".join(self.label_parts)
