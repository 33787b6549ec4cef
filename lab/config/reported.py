"""ReportedRun: a configuration that a third-party table describes only in part."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from lab.config.run import Run, Stated

# Fields that any run may leave open as None; for a table all other unknown fields are removed.
OPEN = Stated._fields


class ReportedRun(Run):
    """A configuration in a third-party table; fields not in the table have no value or default.

    Batches and precision are None then, as any run may leave them open. Reading any other such
    field raises AttributeError, so that nothing takes None for a number. Create it only with `of`,
    which skips the checks of a run that can be started.
    """

    configuration: str = ""

    @classmethod
    def of(cls, configuration: str, **known: Any) -> Self:
        """The configuration of this name, with the known fields of a run."""
        made = cls.model_construct(None, configuration=configuration)
        for name in Run.model_fields:
            made.__dict__.pop(name, None)  # its default
        made.__dict__.update(dict.fromkeys(OPEN) | known)
        return made

    if not TYPE_CHECKING:  # for a type checker every field exists

        def __getattr__(self, name: str) -> Any:
            """Raise the error for a field that the table leaves open."""
            if name in Run.model_fields:
                raise AttributeError(f"{self.label}: its table does not give {name}")
            return super().__getattr__(name)

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """No conflicts, as the run is never started and not fully known."""
        return iter(())

    @cached_property
    def id(self) -> str:
        """Ten hexadecimal digits of the SHA-256 of its name and its known fields."""
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
