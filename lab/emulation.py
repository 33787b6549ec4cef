"""What a profile can emulate, a link or the compute of a rank, and what a record says about it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab.workloads import Frozen

# namespaces: a network namespace per rank behind a token bucket; switch: the same with a delay in user space;
# pacing: the kernel paces each socket, and there is no latency.
Way = Literal["namespaces", "switch", "pacing"]
MEASURED = "measured"


class Link(Frozen):
    """What lies between each rank and the others: bandwidth in each direction, and one-way latency between two ranks."""

    bandwidth_gbit: float = Field(gt=0, le=100, description="Gbit/s, 1e9 bits per second")
    latency_ms: float = Field(default=0.0, ge=0, le=1000)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth in bytes/s."""
        return self.bandwidth_gbit * 1e9 / 8

    @property
    def label(self) -> str:
        """A short name for people."""
        rate = f"{self.bandwidth_gbit:g} Gbit/s" if self.bandwidth_gbit >= 1 else f"{self.bandwidth_gbit * 1e3:g} Mbit/s"
        return f"{rate}, {self.latency_ms:g} ms" if self.latency_ms else rate


class Compute(Frozen):
    """Ranks that sleep instead of computing, so that there can be more of them than cores."""

    emulated: Literal["measured"] = Field(description="sleeps for the times that one rank takes alone")


class Emulated(Frozen):
    """What was emulated where a record was measured, and how; what is None was real."""

    link: Link | None = None
    way: Way | None = Field(default=None, description="how the link was emulated")
    compute: str | None = Field(default=None, description="whose times the ranks slept for")
    step: dict[str, float] = Field(default={}, description="s of forward, backward and optimizer for which a rank slept")

    @property
    def label(self) -> str:
        """A short name for people; two records with different ones must not lie on one curve."""
        parts = []
        if self.link is not None:
            parts.append(f"link {self.link.label}" + (" (paced sockets)" if self.way == "pacing" else ""))
        if self.compute is not None:
            parts.append(f"compute ({self.compute})")
        return " and ".join(parts)
