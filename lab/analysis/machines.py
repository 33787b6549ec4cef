"""Described machines: GPUs and links by name, from their makers' figures, for clusters that one does not have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.analysis.layouts import Layout, Links
from lab.analysis.topology import Level, nodes_of, on_levels
from lab.errors import InputError, Problem, nearest


@dataclass(frozen=True)
class Gpu:
    """A GPU: dense peaks in FLOP/s, memory in bytes and bytes/s, its NVLink, where the figures come from."""

    name: str
    flops: dict[str, float]
    memory_bytes: float
    memory_bytes_per_s: float
    link: str
    source: str


@dataclass(frozen=True)
class Link:
    """A link of one GPU, in one direction: bytes/s at its peak, the share of it that collectives reach, s per message."""

    name: str
    bytes_per_s: float
    reached: float
    alpha_s: float
    source: str


def _gpu(name: str, half: float, single: float, memory_gb: float, tb_per_s: float, link: str, source: str) -> Gpu:
    peaks = {"bf16": half * 1e12, "fp16": half * 1e12, "fp32": single * 1e12}
    return Gpu(name, peaks, memory_gb * 1e9, tb_per_s * 1e12, link, source)


# Dense peaks in TFLOP/s, fp32 without TF32. Makers quote sparse ones too, which are twice as high.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 312, 19.5, 80, 2.039, "nvlink3", "NVIDIA A100 80GB SXM datasheet (2021)"),
        _gpu("h100", 989.5, 67, 80, 3.35, "nvlink4", "NVIDIA H100 SXM5 datasheet (2023)"),
        _gpu("h200", 989.5, 67, 141, 4.8, "nvlink4", "NVIDIA H200 SXM datasheet (2024)"),
        _gpu("b200", 2250, 75, 180, 7.7, "nvlink5", "NVIDIA HGX B200 datasheet (2025), an eighth of the board"),
    )
}

# Eight A100 all-reduce 1 GiB at 229 of 300 GB/s, and 1 MiB in 93 us, 14 messages: tables published with vTrain (2024).
_NVLINK = (0.76, 6e-6)
# TCP over 1 Gbit/s reached 0.91 to 0.96 of the rate here; 1 MiB is 8 ms. Faster links are assumed to reach 0.8.
_CARDS = (0.8, 1e-5)
_ETHERNET = (0.92, 1e-4)


def _ethernet(gbit: int) -> Link:
    return Link(f"ethernet-{gbit}g", gbit / 8 * 1e9, *_ETHERNET, "IEEE 802.3 line rate")


LINKS = {
    link.name: link
    for link in (
        Link("nvlink3", 300e9, *_NVLINK, "NVIDIA A100: 600 GB/s in both directions"),
        Link("nvlink4", 450e9, *_NVLINK, "NVIDIA H100: 900 GB/s in both directions"),
        Link("nvlink5", 900e9, *_NVLINK, "NVIDIA B200: 1.8 TB/s in both directions"),
        Link("pcie3", 15.75e9, *_CARDS, "PCI-SIG, 16 lanes of 8 GT/s"),
        Link("pcie4", 31.5e9, *_CARDS, "PCI-SIG, 16 lanes of 16 GT/s"),
        Link("pcie5", 63e9, *_CARDS, "PCI-SIG, 16 lanes of 32 GT/s"),
        Link("infiniband-edr", 12.5e9, *_CARDS, "InfiniBand Trade Association roadmap, 4x port"),
        Link("infiniband-hdr", 25e9, *_CARDS, "InfiniBand Trade Association roadmap, 4x port"),
        Link("infiniband-ndr", 50e9, *_CARDS, "InfiniBand Trade Association roadmap, 4x port"),
        Link("infiniband-xdr", 100e9, *_CARDS, "InfiniBand Trade Association roadmap, 4x port"),
        *(_ethernet(gbit) for gbit in (1, 10, 25, 100, 200, 400)),
    )
}

# Share of the peak that training reaches where nothing was measured: GPT models of 1.7 B to 1 T parameters reached
# 44 to 52 % of an A100's (Narayanan et al. 2021, table 1).
FLOPS_REACHED, FLOPS_SPREAD = 0.45, 0.08


@dataclass(frozen=True)
class Machine:
    """A described cluster: GPUs per node, their link in the node, one card per GPU between nodes."""

    gpu: Gpu
    gpus_per_node: int
    inner: Link
    outer: Link

    def levels(self, ranks: int, *, stride: int = 1) -> tuple[Level, ...]:
        """The network among so many ranks of which each is `stride` places from the next; all cards of a node count.

        Ranks that are further apart than a node meet on their own card.
        """
        inside = max(self.gpus_per_node // stride, 1)
        inner = Level(0, self.inner.alpha_s, self.inner.bytes_per_s * self.inner.reached)
        outer = Level(0, self.outer.alpha_s, self.outer.bytes_per_s * self.outer.reached * inside)
        return nodes_of(ranks, inside, inner, outer)

    def links(self, layout: Layout) -> Links:
        """Tensor parallel ranks are neighbours, then come the replicas, then the stages of a pipeline."""
        return Links(
            data=on_levels(self.levels(layout.data, stride=layout.tensor)),
            tensor=on_levels(self.levels(layout.tensor)),
            pipeline=on_levels(self.levels(2 if layout.pipeline > 1 else 1, stride=layout.tensor * layout.data)),
        )

    @property
    def description(self) -> str:
        """One line for people, with the sources."""
        return (
            f"described: nodes of {self.gpus_per_node} x {self.gpu.name.upper()} ({self.gpu.source}), {self.inner.name} "
            f"({self.inner.source}), between nodes {self.outer.name} per GPU ({self.outer.source})"
        )


def machine(text: str) -> Machine:
    """Read `GPU[xPER_NODE][:LINK[:LINK BETWEEN NODES]]`, such as `h100x8:nvlink4:infiniband-ndr`; raises InputError.

    Where nothing is said, a node has 8 GPUs on their own NVLink, and a card of InfiniBand NDR for each.
    """
    found = re.fullmatch(
        r"(?P<gpu>[a-z0-9-]+?)(?:x(?P<count>\d+))?(?::(?P<inner>[a-z0-9-]+))?(?::(?P<outer>[a-z0-9-]+))?", text.lower()
    )
    if not found:
        raise InputError("machine", [Problem(text, "no machine is described so", "such as h100x8:nvlink4:infiniband-ndr")])
    gpu, inner, outer = found["gpu"], found["inner"], found["outer"] or "infiniband-ndr"
    problems = [] if gpu in GPUS else [Problem(gpu, "no such GPU", nearest(gpu, GPUS))]
    problems += [Problem(name, "no such link", nearest(name, LINKS)) for name in (inner, outer) if name and name not in LINKS]
    count = int(found["count"] or 8)
    problems += [] if 1 <= count <= 1024 else [Problem(text, f"{count} GPUs in a node", "between 1 and 1024")]
    if problems:
        raise InputError("machine", problems)
    return Machine(GPUS[gpu], count, LINKS[inner or GPUS[gpu].link], LINKS[outer])
