"""What a profile can emulate, a link or the compute of a rank, and what a record says about it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lab.config.base import Frozen

Way = Literal["namespaces", "switch", "pacing"]
WAYS: dict[Way, str] = {
    "namespaces": "a network namespace per rank behind a token bucket",
    "switch": "a network namespace per rank behind a token bucket, and a switch in user space that "
    "delays",
    "pacing": "the kernel's pacing of each rank's sockets",
}
MEASURED = "measured"
SO_MAX_PACING_RATE = 47  # socket(7); Python has no name for it
# GPUs whose times ranks can sleep for; their figures are in perfmodel/hardware.py.
GpuName = Literal["V100", "A100", "H100", "H200", "B200", "RTX 3090", "RTX 4090"]


class Link(Frozen):
    """The link between each rank and the others: bandwidth in each direction, one-way latency."""

    bandwidth_gbit: float = Field(gt=0, le=100)  # Gbit/s, 1e9 bits per second
    latency_ms: float = Field(default=0.0, ge=0, le=1000)

    @property
    def bytes_per_s(self) -> float:
        """The bandwidth in bytes/s."""
        return self.bandwidth_gbit * 1e9 / 8

    @property
    def label(self) -> str:
        """A short name for people."""
        slow = self.bandwidth_gbit < 1
        rate = f"{self.bandwidth_gbit * (1e3 if slow else 1):g} {'Mbit/s' if slow else 'Gbit/s'}"
        return f"{rate}, {self.latency_ms:g} ms" if self.latency_ms else rate


class Compute(Frozen):
    """Ranks that sleep instead of computing, so that they can outnumber the cores.

    They sleep for the times that one rank takes alone, or that a described GPU takes at `mfu` of
    its peak.
    """

    emulated: Literal["measured", GpuName]
    # For the whole step on a described GPU. Training GPT models reached 44 to 52 % of an A100's
    # peak (Narayanan et al., 2021, table 1).
    mfu: float = Field(default=0.45, gt=0, le=1)

    @property
    def label(self) -> str:
        """A short name for people."""
        if self.emulated == MEASURED:
            return "times of one rank"
        return f"{self.emulated} at {100 * self.mfu:.0f} % of its peak"

    @property
    def description(self) -> str:
        """What the ranks sleep for, after "the"."""
        if self.emulated == MEASURED:
            return "times that one of them took alone"
        return f"times of an {self.label}"


class Emulated(Frozen):
    """What was emulated when a record was measured, and how; whatever is None was real."""

    link: Link | None = None
    way: Way | None = None  # how the link was emulated
    compute: Compute | None = None  # whose times the ranks slept for
    step: dict[str, float] = {}  # s of forward, backward and optimizer for which a rank slept

    @property
    def label(self) -> str:
        """A short name for people; two records with different ones must not lie on one curve."""
        parts = [f"link {self.link.label}"] if self.link else []
        parts += [f"compute ({self.compute.label})"] if self.compute else []
        return " and ".join(parts)

    @property
    def description(self) -> str:
        """The label and how the emulation was done."""
        parts = []
        if self.link:
            parts.append(f"link {self.link.label}" + (f", by {WAYS[self.way]}" if self.way else ""))
        if self.compute:
            parts.append(f"compute: ranks slept for the {self.compute.description}")
        return "; ".join(parts)
