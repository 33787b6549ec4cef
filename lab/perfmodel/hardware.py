"""Described machines: GPUs and links by name, from their makers' figures, for clusters that one does not have."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab.config.models import GPT
from lab.errors import InputError, Problem, nearest
from lab.perfmodel.collectives import Collective, CollectiveSeconds, Level, nodes_of, on_levels
from lab.perfmodel.flops import gpt_flops_per_token, gpt_parameters
from lab.perfmodel.layout import Bucket, Layout, Links, Profile
from lab.perfmodel.memory import FP32, MIXED, Checkpointing, rank_memory, transformer_activations


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


def _gpu(
    name: str, half: float, single: float, memory_gb: float, tb_per_s: float, link: str, source: str
) -> Gpu:
    peaks = {"bf16": half * 1e12, "fp16": half * 1e12, "fp32": single * 1e12}
    return Gpu(name, peaks, memory_gb * 1e9, tb_per_s * 1e12, link, source)


# Dense peaks in TFLOP/s, fp32 without TF32. Makers quote sparse ones too, which are twice as high.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100", 312, 19.5, 80, 2.039, "nvlink3", "NVIDIA A100 80GB SXM datasheet (2021)"),
        _gpu("h100", 989.5, 67, 80, 3.35, "nvlink4", "NVIDIA H100 SXM5 datasheet (2023)"),
        _gpu("h200", 989.5, 67, 141, 4.8, "nvlink4", "NVIDIA H200 SXM datasheet (2024)"),
        _gpu(
            "b200",
            2250,
            75,
            180,
            7.7,
            "nvlink5",
            "NVIDIA HGX B200 datasheet (2025), an eighth of the board",
        ),
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
            pipeline=on_levels(
                self.levels(2 if layout.pipeline > 1 else 1, stride=layout.tensor * layout.data)
            ),
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
        r"(?P<gpu>[a-z0-9-]+?)(?:x(?P<count>\d+))?(?::(?P<inner>[a-z0-9-]+))?(?::(?P<outer>[a-z0-9-]+))?",
        text.lower(),
    )
    if not found:
        raise InputError(
            "machine",
            [Problem(text, "no machine is described so", "such as h100x8:nvlink4:infiniband-ndr")],
        )
    gpu, inner, outer = found["gpu"], found["inner"], found["outer"] or "infiniband-ndr"
    problems = [] if gpu in GPUS else [Problem(gpu, "no such GPU", nearest(gpu, GPUS))]
    problems += [
        Problem(name, "no such link", nearest(name, LINKS))
        for name in (inner, outer)
        if name and name not in LINKS
    ]
    count = int(found["count"] or 8)
    problems += (
        []
        if 1 <= count <= 1024
        else [Problem(text, f"{count} GPUs in a node", "between 1 and 1024")]
    )
    if problems:
        raise InputError("machine", problems)
    return Machine(GPUS[gpu], count, LINKS[inner or GPUS[gpu].link], LINKS[outer])


# AdamW reads weights, gradients and both moments and writes all but the gradients, in fp32.
OPTIMIZER_BYTES = 28


@dataclass(frozen=True)
class Described:
    """A GPT on a machine that is known by its makers' figures alone."""

    model: GPT
    vocab_size: int
    machine: Machine

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return gpt_parameters(self.model, self.vocab_size)

    def profile(
        self, *, micro_batch: int, precision: str = "bf16", checkpointing: Checkpointing = "none"
    ) -> Profile:
        """One device's step: arithmetic at the share of the peak that training reaches, the optimizer at memory's speed.

        Backward takes twice the forward pass, and the forward pass again where all activations are recomputed. The
        gradients of the layers are ready at even distances, those of the tied embedding at the end.
        """
        tokens = micro_batch * self.model.block_size
        rate = self.machine.gpu.flops[precision] * FLOPS_REACHED
        forward = gpt_flops_per_token(self.model, self.vocab_size) * tokens / 3 / rate
        backward = forward * (3 if checkpointing == "full" else 2)
        optimizer = OPTIMIZER_BYTES * self.parameters / self.machine.gpu.memory_bytes_per_s
        layer = 12 * self.model.width**2 + 13 * self.model.width
        value = 4 if precision == "fp32" else 2
        layers = self.model.layers
        gradients = [
            Bucket(backward * (nth + 1) / (layers + 1), layer * value) for nth in range(layers)
        ]
        gradients.append(Bucket(backward, (self.parameters - layers * layer) * value))
        basis = f"{FLOPS_REACHED:.0%} of the peak of the {self.machine.gpu.name}"
        return Profile(forward, backward, optimizer, tuple(gradients), spread=0.0, basis=basis)

    def activation_bytes(
        self, *, micro_batch: int, precision: str, checkpointing: Checkpointing
    ) -> float:
        """Bytes that one micro-batch keeps: the layers' (Korthikanti et al. 2022), the logits and their gradients in fp32."""
        model, value = self.model, 4 if precision == "fp32" else 2
        layers = transformer_activations(
            batch=micro_batch,
            sequence=model.block_size,
            width=model.width,
            heads=model.heads,
            layers=model.layers,
            checkpointing=checkpointing,
            value_bytes=value,
        )
        vocabulary = model.vocab_size or self.vocab_size
        return layers + 2 * 4 * micro_batch * model.block_size * vocabulary

    def memory(
        self,
        layout: Layout,
        *,
        micro_batch: int,
        grad_accum: int,
        precision: str,
        checkpointing: Checkpointing,
    ) -> float:
        """Bytes of a rank at its peak."""
        kept = self.activation_bytes(
            micro_batch=micro_batch, precision=precision, checkpointing=checkpointing
        )
        state = FP32 if precision == "fp32" else MIXED
        layer = (12 * self.model.width**2 + 13 * self.model.width) * state.weights
        return rank_memory(
            self.parameters,
            layout,
            activation_bytes=kept,
            grad_accum=grad_accum,
            state=state,
            largest_unit=layer,
        ).total

    def links(self, layout: Layout) -> Links:
        """The machine's links, each cost computed once."""
        links = self.machine.links(layout)
        return Links(*(_once(cost) for cost in (links.data, links.tensor, links.pipeline)))

    @property
    def memory_limit(self) -> float:
        """Bytes of a GPU that training may take: a tenth stays for the back end and fragments."""
        return 0.9 * self.machine.gpu.memory_bytes

    @property
    def error(self) -> float:
        """Relative standard deviation of the share of the peak that is reached."""
        return FLOPS_SPREAD / FLOPS_REACHED


def _once(cost: CollectiveSeconds) -> CollectiveSeconds:
    known: dict[tuple[Collective, float], float] = {}

    def looked_up(collective: Collective, size: float) -> float:
        if (collective, size) not in known:
            known[collective, size] = cost(collective, size)
        return known[collective, size]

    return looked_up


# TFLOP/s by the name that CUDA gives the device: dense, without the sparsity that vendors double their figures by;
# fp32 without TF32, bf16 and fp16 on tensor cores with fp32 accumulation.
_VENDOR: list[tuple[str, dict[str, float], str]] = [
    (r"Tesla V100-SXM2-\d+GB", {"fp32": 15.7, "fp16": 125.0}, "NVIDIA V100 datasheet"),
    (r"Tesla V100-PCIE-\d+GB", {"fp32": 14.0, "fp16": 112.0}, "NVIDIA V100 datasheet"),
    (
        r"(NVIDIA )?A100-(SXM4|PCIE|PCIe)-\d+GB|NVIDIA A100 80GB PCIe",
        {"fp32": 19.5, "bf16": 312.0, "fp16": 312.0},
        "NVIDIA A100 datasheet",
    ),
    (
        r"NVIDIA H100 80GB HBM3",
        {"fp32": 67.0, "bf16": 989.5, "fp16": 989.5},
        "NVIDIA H100 datasheet, SXM",
    ),
    (
        r"NVIDIA H100 NVL",
        {"fp32": 60.0, "bf16": 835.5, "fp16": 835.5},
        "NVIDIA H100 datasheet, NVL",
    ),
    (
        r"NVIDIA H100 PCIe",
        {"fp32": 51.0, "bf16": 756.5, "fp16": 756.5},
        "NVIDIA H100 datasheet of 2022, PCIe",
    ),
    (r"NVIDIA H200", {"fp32": 67.0, "bf16": 989.5, "fp16": 989.5}, "NVIDIA H200 datasheet, SXM"),
    (
        r"NVIDIA H200 NVL",
        {"fp32": 60.0, "bf16": 835.5, "fp16": 835.5},
        "NVIDIA H200 datasheet, NVL",
    ),
    (
        r"NVIDIA B200",
        {"fp32": 75.0, "bf16": 2250.0, "fp16": 2250.0},
        "NVIDIA Blackwell datasheet, HGX B200",
    ),
    (
        r"NVIDIA GeForce RTX 3090",
        {"fp32": 35.6, "bf16": 71.2, "fp16": 71.2},
        "NVIDIA GA102 whitepaper, appendix A",
    ),
    (
        r"NVIDIA GeForce RTX 4090",
        {"fp32": 82.6, "bf16": 165.2, "fp16": 165.2},
        "NVIDIA Ada whitepaper, appendix A",
    ),
]


def vendor_peak(name: str, *, precision: str) -> tuple[float, str] | None:
    """The vendor's dense figure in FLOP/s with its source; None for a device or precision that the table does not hold."""
    for pattern, teraflops, source in _VENDOR:
        if re.fullmatch(pattern, name) and precision in teraflops:
            return teraflops[
                precision
            ] * 1e12, f"{source}: {teraflops[precision]:g} TFLOP/s {precision}, dense"
    return None
