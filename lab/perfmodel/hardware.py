"""Hardware: the table of GPUs and links from vendor figures, and clusters described by it.

MFU, emulated compute, the audit's plausible bandwidths, and predictions and plans for unavailable
machines are all computed from these figures.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache, partial

from lab.errors import InputError, Problem, nearest, require_type
from lab.perfmodel.collectives import Level, collective_seconds
from lab.perfmodel.layout import Layout, Links

# Share of a link's peak that collectives reach, and s per message. Eight A100s all-reduce 1 GiB at
# 229 of 300 GB/s, and 1 MiB in 93 us, 14 messages: tables published with vTrain (2024).
_NVLINK = (0.76, 6e-6)
# TCP over 1 Gbit/s reached 0.91 to 0.96 of the rate here; 1 MiB is 8 ms. Faster links are assumed
# to reach 0.8.
_CARDS = (0.8, 1e-5)
_ETHERNET = (0.92, 1e-4)


@dataclass(frozen=True)
class Gpu:
    """A GPU: dense peaks in FLOP/s by precision, memory in bytes and bytes/s, its intra-node link.

    That link joins `joined` GPUs unless a machine is described otherwise. `cuda` matches the names
    that CUDA reports, including boards that differ only in memory.
    """

    name: str
    cuda: str
    flops: dict[str, float]
    memory_bytes: float
    memory_bytes_per_s: float
    link: str
    source: str
    joined: int = 8

    def peak(self, precision: str) -> tuple[float, str] | None:
        """The dense peak in FLOP/s and its source; None for a precision without a figure."""
        if precision not in self.flops:
            return None
        flops = self.flops[precision]
        return flops, f"{self.source}: {flops / 1e12:g} TFLOP/s {precision}, dense"

    def fastest(self, precision: str) -> float:
        """The peak of a supported precision, or else of its fastest 16-bit one, in FLOP/s.

        A GPU without TF32 computes in fp32 instead.
        """
        if precision == "tf32" and precision not in self.flops:
            precision = "fp32"
        return self.flops.get(precision) or self.flops.get("bf16") or max(self.flops.values())


# Dense peaks; if a source gives only figures with sparsity, half of them. fp32 is without TF32, the
# others on tensor cores with fp32 accumulation; 0: no source gives it, or the GPU lacks it.
# Volta and Turing have no bf16. Each of the two dies of an MI250X is a GPU of its own.
# If there is TF32, its products take twice as long as bf16's: NVIDIA A100 whitepaper, table 2.
_HALVES, _FP16 = ("bf16", "fp16"), ("fp16",)
# The GPUs of an NVL72 rack are joined by one switch.
_JOINED = {"gb200": 72, "gb300": 72}
_WITHOUT_TF32 = {"t4", "v100", "v100-pcie", "mi250x"}
# fmt: off
_GPUS = (  # name, CUDA's name, TFLOP/s in half precisions, fp32, fp8, fp4, GB, TB/s, link, source
    ("t4", "Tesla T4", _FP16, 65, 8.1, 0, 0, 16, 0.32, "pcie3", "NVIDIA T4 datasheet"),
    ("v100", r"Tesla V100-SXM2-\d+GB", _FP16, 125, 15.7, 0, 0, 32, 0.9, "nvlink2",
     "NVIDIA V100 datasheet"),
    ("v100-pcie", r"Tesla V100-PCIE-\d+GB", _FP16, 112, 14, 0, 0, 32, 0.9, "pcie3",
     "NVIDIA V100 datasheet (2020)"),
    ("a10", "NVIDIA A10", _HALVES, 125, 31.2, 0, 0, 24, 0.6, "pcie4", "NVIDIA A10 datasheet"),
    ("a10g", "NVIDIA A10G", _HALVES, 70, 0, 0, 0, 24, 0.6, "pcie4",
     "NVIDIA and AWS, A10G datasheet (2022)"),
    ("a100", "(NVIDIA )?A100-SXM4-80GB", _HALVES, 312, 19.5, 0, 0, 80, 2.039, "nvlink3",
     "NVIDIA A100 80GB SXM datasheet (2021)"),
    ("a800", "NVIDIA A800-SXM4-80GB", _HALVES, 312, 19.5, 0, 0, 80, 2.039, "nvlink-400",
     "NVIDIA A800: an A100 with a slower link"),
    ("a100-40gb", "(NVIDIA )?A100-SXM4-40GB", _HALVES, 312, 19.5, 0, 0, 40, 1.555, "nvlink3",
     "NVIDIA A100 40GB SXM datasheet (2020)"),
    ("a100-pcie", "(NVIDIA )?A100 80GB PCIe", _HALVES, 312, 19.5, 0, 0, 80, 1.935, "pcie4",
     "NVIDIA A100 80GB PCIe datasheet (2021)"),
    ("a100-pcie-40gb", "(NVIDIA )?A100-PCIE-40GB", _HALVES, 312, 19.5, 0, 0, 40, 1.555, "pcie4",
     "NVIDIA A100 40GB PCIe datasheet (2020)"),
    ("l4", "NVIDIA L4", _HALVES, 121, 30.3, 242.5, 0, 24, 0.3, "pcie4",
     "NVIDIA L4 datasheet (2023), half of the sparse figures"),
    ("l40s", "NVIDIA L40S", _HALVES, 362, 91.6, 733, 0, 48, 0.864, "pcie4",
     "NVIDIA L40S datasheet"),
    ("h100", "NVIDIA H100 80GB HBM3", _HALVES, 989.5, 67, 1979, 0, 80, 3.35, "nvlink4",
     "NVIDIA H100 SXM5 datasheet (2023)"),
    ("h800", "NVIDIA H800", _HALVES, 989.5, 67, 1979, 0, 80, 3.35, "nvlink-400",
     "NVIDIA H800: an H100 with a slower link"),
    ("h100-nvl", "NVIDIA H100 NVL", _HALVES, 835.5, 60, 1670.5, 0, 94, 3.9, "pcie5",
     "NVIDIA H100 product page (2026), half of the sparse figures"),
    ("h100-pcie", "NVIDIA H100 PCIe", _HALVES, 756.5, 51, 1513, 0, 80, 2, "pcie5",
     "NVIDIA H100 datasheet (2022), half of the sparse figures"),
    ("h200", "NVIDIA H200", _HALVES, 989.5, 67, 1979, 0, 141, 4.8, "nvlink4",
     "NVIDIA H200 SXM datasheet (2024)"),
    ("h200-nvl", "NVIDIA H200 NVL", _HALVES, 835.5, 60, 1670.5, 0, 141, 4.8, "pcie5",
     "NVIDIA H200 datasheet (2024), half of the sparse figures"),
    ("gh200", "NVIDIA GH200 480GB", _HALVES, 989.5, 67, 1979, 0, 96, 4, "nvlink4",
     "NVIDIA GH200 datasheet (2023), with 96 GB"),
    ("b200", "NVIDIA B200", _HALVES, 2250, 75, 4500, 9000, 180, 7.7, "nvlink5",
     "NVIDIA Blackwell datasheet (2025), HGX B200, half of the sparse figures"),
    ("b300", "NVIDIA B300.*", _HALVES, 2250, 75, 4500, 13500, 288, 8, "nvlink5",
     "NVIDIA HGX B300 product page (2025), half of the sparse figures"),
    ("gb200", "NVIDIA GB200", _HALVES, 2500, 80, 5000, 10000, 186, 8, "nvlink5",
     "NVIDIA GB200 NVL72 product page (2025), a 72nd, half of the sparse figures"),
    ("gb300", "NVIDIA GB300", _HALVES, 2500, 80, 5000, 15000, 288, 8, "nvlink5",
     "NVIDIA GB300 NVL72 product page (2025), a 72nd, half of the sparse figures"),
    ("rtx-3090", "NVIDIA GeForce RTX 3090", _HALVES, 71.2, 35.6, 0, 0, 24, 0.936, "pcie4",
     "NVIDIA GA102 whitepaper, appendix A"),
    ("rtx-4090", "NVIDIA GeForce RTX 4090", _HALVES, 165.2, 82.6, 330.3, 0, 24, 1.008, "pcie4",
     "NVIDIA Ada whitepaper, appendix A"),
    ("rtx-5090", "NVIDIA GeForce RTX 5090", _HALVES, 209.5, 104.8, 419, 0, 32, 1.792, "pcie5",
     "NVIDIA RTX Blackwell whitepaper, appendix A"),
    ("mi250x", r"AMD Instinct MI250X.*", _HALVES, 191.5, 23.9, 0, 0, 64, 1.638, "infinity-fabric-2",
     "AMD MI250X data sheet, half of the module"),
    ("mi300x", r"AMD Instinct MI300X.*", _HALVES, 1307.4, 163.4, 2614.9, 0, 192, 5.3,
     "infinity-fabric-3", "AMD MI300X data sheet"),
    ("mi325x", r"AMD Instinct MI325X.*", _HALVES, 1307.4, 163.4, 2614.9, 0, 256, 6,
     "infinity-fabric-3", "AMD MI325X data sheet"),
    ("mi350x", r"AMD Instinct MI350X.*", _HALVES, 2306.9, 144.2, 4613.7, 9227.5, 288, 8,
     "infinity-fabric-4", "AMD MI350X data sheet"),
    ("mi355x", r"AMD Instinct MI355X.*", _HALVES, 2516.6, 157.3, 5033.2, 10066.3, 288, 8,
     "infinity-fabric-4", "AMD MI355X data sheet"),
)
# fmt: on
GPUS = {
    name: Gpu(
        name=name,
        cuda=cuda,
        flops={
            precision: teraflops * 1e12
            for precision, teraflops in (
                *((part, half) for part in halves),
                *(("fp32", single), ("fp8", eight), ("fp4", four)),
                ("tf32", 0 if name in _WITHOUT_TF32 else half / 2),
            )
            if teraflops
        },
        memory_bytes=gigabytes * 1e9,
        memory_bytes_per_s=rate * 1e12,
        link=link,
        source=source,
        joined=_JOINED.get(name, 8),
    )
    for name, cuda, halves, half, single, eight, four, gigabytes, rate, link, source in _GPUS
}


@dataclass(frozen=True)
class Link:
    """A GPU's link in one direction: peak bytes/s, the share collectives reach, s per message.

    `sums` is the share of the peak at which the switch sums an all-reduce; 0 if it cannot.
    `pattern` matches the words that published tables use for it.
    """

    name: str
    bytes_per_s: float
    reached: float
    alpha_s: float
    source: str
    pattern: str = ""
    sums: float = 0.0


_BOTH = "in both directions"
# Eight H100s all-reduce at up to 275 of 450 GB/s through a switch that sums (an author of NCCL in
# issue 212 of nccl-tests); B200s reach 0.74 / 0.85 of that share (NCCL's tuning, nvlsEfficiency).
_NVLS = "NVLink SHARP, the switch sums: NVIDIA NCCL 2.17 and later"
_IBTA = "InfiniBand Trade Association roadmap, 4x port"
# If a text matches several patterns, the first one counts.
LINKS = {
    link.name: link
    for link in (
        Link("nvlink5", 900e9, *_NVLINK, f"NVIDIA B200: 1.8 TB/s {_BOTH}", r"nv_?link.*5|b[23]00"),
        Link("nvlink4", 450e9, *_NVLINK, f"NVIDIA H100: 900 GB/s {_BOTH}", r"h100|h200|hopper"),
        Link("nvlink5-nvls", 900e9, *_NVLINK, _NVLS, sums=0.53),
        Link("nvlink4-nvls", 450e9, *_NVLINK, _NVLS, sums=0.61),
        Link("nvlink3", 300e9, *_NVLINK, f"NVIDIA A100: 600 GB/s {_BOTH}", r"a100|ampere"),
        Link("nvlink2", 150e9, *_NVLINK, f"NVIDIA V100: 300 GB/s {_BOTH}", r"v100|volta"),
        Link("pcie5", 63e9, *_CARDS, "PCI-SIG, 16 lanes of 32 GT/s", r"pcie.*5"),
        Link("pcie4", 31.5e9, *_CARDS, "PCI-SIG, 16 lanes of 16 GT/s", r"pcie.*4"),
        Link("pcie3", 15.75e9, *_CARDS, "PCI-SIG, 16 lanes of 8 GT/s", r"pcie"),
        Link(
            "infinity-fabric-2", 200e9, *_NVLINK, f"AMD MI250X: 4 links of a die, 100 GB/s {_BOTH}"
        ),
        Link("infinity-fabric-3", 448e9, *_NVLINK, f"AMD MI300X: 7 links, 128 GB/s {_BOTH}"),
        Link("infinity-fabric-4", 537.6e9, *_NVLINK, f"AMD MI355X: 7 links, 153.6 GB/s {_BOTH}"),
        Link("nvlink-400", 200e9, *_NVLINK, f"NVIDIA A800 and H800: 400 GB/s {_BOTH}", r"[ah]800"),
        Link("infiniband-ndr", 50e9, *_CARDS, _IBTA, r"\bndr\b"),
        Link("infiniband-hdr", 25e9, *_CARDS, _IBTA, r"\bhdr\b"),
        Link("infiniband-edr", 12.5e9, *_CARDS, _IBTA, r"\bedr\b"),
        Link("infiniband-xdr", 100e9, *_CARDS, _IBTA),
        *(
            Link(f"ethernet-{gbit}g", gbit / 8 * 1e9, *_ETHERNET, "IEEE 802.3 line rate")
            for gbit in (1, 10, 25, 100, 200, 400)
        ),
    )
}


def vendor_peak(cuda_name: str, *, precision: str) -> tuple[float, str] | None:
    """The dense peak (FLOP/s) of a device by CUDA's name, with its source; None if unknown."""
    gpu = next((gpu for gpu in GPUS.values() if re.fullmatch(gpu.cuda, cuda_name)), None)
    return gpu.peak(precision) if gpu else None


@lru_cache(maxsize=1000)  # every row of a table names one of a few
def named_gpu(text: str) -> Gpu | None:
    """The GPU named by words such as "8xA100-SXM4-40GB" or "DGX-GB200"; None if there is none."""
    words = re.sub(r"[^a-z0-9]+", "-", text.lower())
    words = re.sub(r"-sxm\d?(?![a-z0-9])", "", re.sub(r"(?<=\d)x(?=[a-z])", "x-", words))
    words = re.sub(r"(?<=\d)(x|-x)-(?=\d{4}(?![a-z0-9]))|rtx(?=\d)", "-rtx-", words)
    words = re.sub(r"(?<![a-z0-9])(mi3\d{2})(?![0-9a-z])", r"\1x", words)  # MI355 is MI355X
    end = r"(?![0-9]|(?<=nvl)ink)"  # "H100, NVLink" is no H100 NVL
    names = [name for name in GPUS if re.search(rf"(?<![a-z0-9]){name}{end}", words)]
    return GPUS[max(names, key=len)] if names else None


def emulated_gpu(name: str) -> Gpu:
    """The GPU of a profile's `emulated:`, such as "RTX 3090"."""
    return GPUS[name.lower().replace(" ", "-")]


def named_link(text: str) -> Link | None:
    """The link named by words such as "PCIe 4.0" or "8x A100"; None if there is none."""
    links = (link for link in LINKS.values() if link.pattern)
    return next((link for link in links if re.search(link.pattern, text, re.IGNORECASE)), None)


@dataclass(frozen=True)
class Machine:
    """A described cluster: GPUs per node, their link there, one network card per GPU."""

    gpu: Gpu
    gpus_per_node: int
    inner: Link
    outer: Link

    def levels(self, ranks: int, *, stride: int = 1) -> tuple[Level, ...]:
        """The network among `ranks` ranks `stride` places apart, with all cards of a node.

        If ranks do not fill the nodes, they are spread over them as evenly as possible. Ranks that
        are further apart than a node communicate through their own card.
        """
        inside = max(self.gpus_per_node // stride, 1)
        nodes = math.ceil(ranks / inside)
        inner, outer, rate = self.inner, self.outer, self.inner.bytes_per_s
        return (
            Level(math.ceil(ranks / nodes), inner.alpha_s, rate * inner.reached, rate * inner.sums),
            Level(nodes, outer.alpha_s, outer.bytes_per_s * outer.reached * inside),
        )

    def links(self, layout: Layout) -> Links:
        """Rank order: tensor parallel ranks are neighbours, then replicas, then pipeline stages."""
        stages, neighbours = min(layout.pipeline, 2), layout.tensor * layout.data
        groups = (
            self.levels(layout.data, stride=layout.tensor),
            self.levels(layout.tensor),
            self.levels(stages, stride=neighbours),
        )
        return Links(*(partial(collective_seconds, levels=levels) for levels in groups))

    @property
    def description(self) -> str:
        """One line with the sources."""
        return (
            f"described: nodes of {self.gpus_per_node} x {self.gpu.name.upper()} "
            f"({self.gpu.source}), {self.inner.name} ({self.inner.source}), "
            f"between nodes {self.outer.name} per GPU ({self.outer.source})"
        )


def machine(text: str | Machine) -> Machine:
    """Read `GPU[xPER_NODE][:LINK[:LINK BETWEEN NODES]]`, as `h100x8:nvlink4:infiniband-ndr`.

    By default a node has 8 GPUs on their own link (72 of a GB200 or GB300), and InfiniBand NDR for
    each of them. A machine is returned as it is. Raises InputError.
    """
    if isinstance(text, Machine):
        return text
    require_type(text, str, "machine", "a text such as 'h100x8:nvlink4:infiniband-ndr'")
    match = re.fullmatch(
        r"([a-z0-9-]+?)(?:x(\d+))?(?::([a-z0-9-]+))?(?::([a-z0-9-]+))?", text.lower()
    )
    if not match:
        advice = "such as h100x8:nvlink4:infiniband-ndr"
        raise InputError.of("machine", text, "cannot be read as a machine", advice)
    gpu, inner, outer = match[1], match[3], match[4] or "infiniband-ndr"
    count = int(match[2] or (GPUS[gpu].joined if gpu in GPUS else 8))
    usable = [name for name in GPUS if "bf16" in GPUS[name].flops]  # plans assume bf16
    reason = "has no bf16" if gpu in GPUS else "unknown GPU"
    problems = [] if gpu in usable else [Problem(gpu, reason, nearest(gpu, usable))]
    problems += [
        Problem(name, "unknown link", nearest(name, LINKS))
        for name in (inner, outer)
        if name and name not in LINKS
    ]
    if not 1 <= count <= 1024:
        problems.append(Problem(text, f"{count} GPUs in a node", "between 1 and 1024"))
    if problems:
        raise InputError("machine", problems)
    return Machine(GPUS[gpu], count, LINKS[inner or GPUS[gpu].link], LINKS[outer])
