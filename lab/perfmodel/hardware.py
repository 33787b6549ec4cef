"""Hardware: the table of GPUs and links by their makers' figures, and clusters described by it.

MFU, emulated compute, the audit's plausible bandwidths, and predictions and plans for machines that
nobody here has are all computed from these figures.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from lab.config.datasets import vocab_size_of
from lab.config.models import GPT
from lab.config.run import Run
from lab.errors import InputError, LabError, Problem, nearest
from lab.perfmodel.collectives import Level, nodes_of, on_levels
from lab.perfmodel.flops import block_parameters, gpt_flops_per_token, gpt_parameters
from lab.perfmodel.layout import Bucket, Candidate, Layout, Links, Profile
from lab.perfmodel.memory import FP32, MIXED, rank_memory, transformer_activations

# Share of the peak that training reaches where nothing was measured: GPT models of 1.7 B to 1 T
# parameters reached 44 to 52 % of an A100's (Narayanan et al. 2021, table 1).
FLOPS_REACHED, FLOPS_SPREAD = 0.45, 0.08
# AdamW reads weights, gradients and both moments and writes all but the gradients, in fp32.
OPTIMIZER_BYTES = 28
# Share of a link's peak that collectives reach, and s per message. Eight A100 all-reduce 1 GiB at
# 229 of 300 GB/s, and 1 MiB in 93 us, 14 messages: tables published with vTrain (2024).
_NVLINK = (0.76, 6e-6)
# TCP over 1 Gbit/s reached 0.91 to 0.96 of the rate here; 1 MiB is 8 ms. Faster links are assumed
# to reach 0.8.
_CARDS = (0.8, 1e-5)
_ETHERNET = (0.92, 1e-4)


@dataclass(frozen=True)
class Gpu:
    """A GPU: dense peaks in FLOP/s by precision, memory in bytes and bytes/s, the link in its node.

    `cuda` matches the names that CUDA reports, also those of boards that differ only in memory.
    """

    name: str
    cuda: str
    flops: dict[str, float]
    memory_bytes: float
    memory_bytes_per_s: float
    link: str
    source: str

    def peak(self, precision: str) -> tuple[float, str] | None:
        """The dense peak in FLOP/s and its source; None for a precision without a figure."""
        if precision not in self.flops:
            return None
        flops = self.flops[precision]
        return flops, f"{self.source}: {flops / 1e12:g} TFLOP/s {precision}, dense"


# Dense peaks, without the sparsity that makers double their figures by: fp32 without TF32, the
# others on tensor cores with fp32 accumulation. Volta has no bf16.
_HALVES, _VOLTA = ("bf16", "fp16"), ("fp16",)
_A100 = r"(NVIDIA )?A100[- ](\w+-)?\d+GB( PCIe)?"
# fmt: off
_GPUS = (  # name, CUDA's name, TFLOP/s in half precisions and fp32, GB, TB/s, link, source
    ("v100", r"Tesla V100-SXM2-\d+GB", _VOLTA, 125, 15.7, 32, 0.9, "nvlink2", "V100 datasheet"),
    ("v100-pcie", r"Tesla V100-PCIE-\d+GB", _VOLTA, 112, 14, 32, 0.9, "pcie3", "V100 datasheet"),
    ("a100", _A100, _HALVES, 312, 19.5, 80, 2.039, "nvlink3", "A100 80GB SXM datasheet (2021)"),
    ("h100", "NVIDIA H100 80GB HBM3", _HALVES, 989.5, 67, 80, 3.35, "nvlink4",
     "H100 SXM5 datasheet (2023)"),
    ("h100-nvl", "NVIDIA H100 NVL", _HALVES, 835.5, 60, 94, 3.9, "pcie5", "H100 NVL datasheet"),
    ("h100-pcie", "NVIDIA H100 PCIe", _HALVES, 756.5, 51, 80, 2, "pcie5", "H100 PCIe datasheet"),
    ("h200", "NVIDIA H200", _HALVES, 989.5, 67, 141, 4.8, "nvlink4", "H200 SXM datasheet (2024)"),
    ("h200-nvl", "NVIDIA H200 NVL", _HALVES, 835.5, 60, 141, 4.8, "pcie5", "H200 NVL datasheet"),
    ("b200", "NVIDIA B200", _HALVES, 2250, 75, 180, 7.7, "nvlink5",
     "HGX B200 datasheet (2025), an eighth of the board"),
    ("rtx-3090", "NVIDIA GeForce RTX 3090", _HALVES, 71.2, 35.6, 24, 0.936, "pcie4",
     "GA102 whitepaper, appendix A"),
    ("rtx-4090", "NVIDIA GeForce RTX 4090", _HALVES, 165.2, 82.6, 24, 1.008, "pcie4",
     "Ada whitepaper, appendix A"),
)
# fmt: on
GPUS = {
    name: Gpu(
        name=name,
        cuda=cuda,
        flops=dict.fromkeys(halves, half * 1e12) | {"fp32": single * 1e12},
        memory_bytes=gigabytes * 1e9,
        memory_bytes_per_s=rate * 1e12,
        link=link,
        source=f"NVIDIA {source}",
    )
    for name, cuda, halves, half, single, gigabytes, rate, link, source in _GPUS
}


@dataclass(frozen=True)
class Link:
    """A GPU's link in one direction: peak bytes/s, the share collectives reach, s per message.

    `pattern` matches the words by which tables of others name it.
    """

    name: str
    bytes_per_s: float
    reached: float
    alpha_s: float
    source: str
    pattern: str = ""


_BOTH = "in both directions"
_IBTA = "InfiniBand Trade Association roadmap, 4x port"
# Where a text matches several patterns, the first of these is meant.
LINKS = {
    link.name: link
    for link in (
        Link("nvlink5", 900e9, *_NVLINK, f"NVIDIA B200: 1.8 TB/s {_BOTH}", r"nv_?link.*5|b200"),
        Link("nvlink4", 450e9, *_NVLINK, f"NVIDIA H100: 900 GB/s {_BOTH}", r"h100|h200|hopper"),
        Link("nvlink3", 300e9, *_NVLINK, f"NVIDIA A100: 600 GB/s {_BOTH}", r"a100|ampere"),
        Link("nvlink2", 150e9, *_NVLINK, f"NVIDIA V100: 300 GB/s {_BOTH}", r"v100|volta"),
        Link("pcie5", 63e9, *_CARDS, "PCI-SIG, 16 lanes of 32 GT/s", r"pcie.*5"),
        Link("pcie4", 31.5e9, *_CARDS, "PCI-SIG, 16 lanes of 16 GT/s", r"pcie.*4"),
        Link("pcie3", 15.75e9, *_CARDS, "PCI-SIG, 16 lanes of 8 GT/s", r"pcie"),
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
    """The dense peak (FLOP/s) of a device by CUDA's name, with its source; None where unknown."""
    gpu = next((gpu for gpu in GPUS.values() if re.fullmatch(gpu.cuda, cuda_name)), None)
    return gpu.peak(precision) if gpu else None


def emulated_gpu(name: str) -> Gpu:
    """The GPU of a profile's `emulated:`, such as "RTX 3090"."""
    return GPUS[name.lower().replace(" ", "-")]


def named_link(text: str) -> Link | None:
    """The link that words such as "PCIe 4.0" or "8x A100" name; None for none."""
    links = (link for link in LINKS.values() if link.pattern)
    return next((link for link in links if re.search(link.pattern, text, re.IGNORECASE)), None)


@dataclass(frozen=True)
class Machine:
    """A described cluster: GPUs per node, their link there, one card per GPU between nodes."""

    gpu: Gpu
    gpus_per_node: int
    inner: Link
    outer: Link

    def levels(self, ranks: int, *, stride: int = 1) -> tuple[Level, ...]:
        """The network among `ranks` ranks `stride` places apart, with all cards of a node.

        Ranks that are further apart than a node meet on their own card.
        """
        inside = max(self.gpus_per_node // stride, 1)
        inner = Level(0, self.inner.alpha_s, self.inner.bytes_per_s * self.inner.reached)
        outer = Level(0, self.outer.alpha_s, self.outer.bytes_per_s * self.outer.reached * inside)
        return nodes_of(ranks, inside, inner, outer)

    def links(self, layout: Layout) -> Links:
        """Tensor parallel ranks are neighbours, then come replicas, then a pipeline's stages."""
        stages, neighbours = min(layout.pipeline, 2), layout.tensor * layout.data
        return Links(
            data=on_levels(self.levels(layout.data, stride=layout.tensor)),
            tensor=on_levels(self.levels(layout.tensor)),
            pipeline=on_levels(self.levels(stages, stride=neighbours)),
        )

    @property
    def description(self) -> str:
        """One line with the sources."""
        return (
            f"described: nodes of {self.gpus_per_node} x {self.gpu.name.upper()} "
            f"({self.gpu.source}), {self.inner.name} ({self.inner.source}), "
            f"between nodes {self.outer.name} per GPU ({self.outer.source})"
        )


def machine(text: str) -> Machine:
    """Read `GPU[xPER_NODE][:LINK[:LINK BETWEEN NODES]]`, as `h100x8:nvlink4:infiniband-ndr`.

    By default a node has 8 GPUs on their own link, and InfiniBand NDR for each of them. Raises
    InputError.
    """
    match = re.fullmatch(
        r"([a-z0-9-]+?)(?:x(\d+))?(?::([a-z0-9-]+))?(?::([a-z0-9-]+))?", text.lower()
    )
    if not match:
        advice = "such as h100x8:nvlink4:infiniband-ndr"
        raise InputError("machine", [Problem(text, "cannot be read as a machine", advice)])
    gpu, count, inner, outer = match[1], int(match[2] or 8), match[3], match[4] or "infiniband-ndr"
    known = [name for name in GPUS if "bf16" in GPUS[name].flops]  # what is planned for is bf16
    reason = "has no bf16" if gpu in GPUS else "unknown GPU"
    problems = [] if gpu in known else [Problem(gpu, reason, nearest(gpu, known))]
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


@dataclass(frozen=True)
class Described:
    """A GPT on a machine that is known by its makers' figures alone."""

    model: GPT
    vocab_size: int
    machine: Machine

    @classmethod
    def of(cls, run: Run, machine: Machine) -> Described:
        """A run's model there; raises LabError for models other than GPT."""
        if not isinstance(run.architecture, GPT):
            kind = run.architecture.kind
            raise LabError(f"a described machine trains models of kind gpt, not {kind}")
        return cls(run.architecture, vocab_size_of(run.architecture, run.dataset), machine)

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return gpt_parameters(self.model, self.vocab_size)

    def profile(self, candidate: Candidate) -> Profile:
        """One device's step: arithmetic at the share of the peak that training reaches.

        The optimizer runs at memory's speed. Backward takes twice the forward pass, and the forward
        pass again where all activations are recomputed. The gradients of the layers are ready at
        even distances, those of the tied embedding at the end.
        """
        tokens = candidate.micro_batch * self.model.block_size
        rate = self.machine.gpu.flops[candidate.precision] * FLOPS_REACHED
        forward = gpt_flops_per_token(self.model, self.vocab_size) * tokens / 3 / rate
        backward = forward * (3 if candidate.checkpointing == "full" else 2)
        layers, layer = self.model.layers, block_parameters(self.model.width)
        value = 4 if candidate.precision == "fp32" else 2
        gradients = [
            Bucket(backward * (nth + 1) / (layers + 1), layer * value) for nth in range(layers)
        ]
        gradients.append(Bucket(backward, (self.parameters - layers * layer) * value))
        optimizer = OPTIMIZER_BYTES * self.parameters / self.machine.gpu.memory_bytes_per_s
        basis = f"{FLOPS_REACHED:.0%} of the peak of the {self.machine.gpu.name}"
        return Profile(forward, backward, optimizer, tuple(gradients), basis=basis)

    def memory(self, candidate: Candidate) -> float:
        """Bytes of a rank at its peak: state, activations of the layers, fp32 logits and gradients.

        Layers by Korthikanti et al. (2022).
        """
        model, single = self.model, candidate.precision == "fp32"
        layers = transformer_activations(
            batch=candidate.micro_batch,
            sequence=model.block_size,
            width=model.width,
            heads=model.heads,
            layers=model.layers,
            checkpointing=candidate.checkpointing,
            value_bytes=4 if single else 2,
        )
        vocabulary = model.vocab_size or self.vocab_size
        state = FP32 if single else MIXED
        return rank_memory(
            self.parameters,
            candidate.layout,
            activation_bytes=layers + 8 * candidate.micro_batch * model.block_size * vocabulary,
            grad_accum=candidate.grad_accum,
            state=state,
            largest_unit=block_parameters(model.width) * state.weights,
        ).total

    def links(self, layout: Layout) -> Links:
        """The machine's links, each cost computed once."""
        links = self.machine.links(layout)
        return Links(cache(links.data), cache(links.tensor), cache(links.pipeline))

    @property
    def memory_limit(self) -> float:
        """Bytes of a GPU that training may take: a tenth is left to the back end and fragments."""
        return 0.9 * self.machine.gpu.memory_bytes

    @property
    def error(self) -> float:
        """Relative standard deviation of the share of the peak that is reached."""
        return FLOPS_SPREAD / FLOPS_REACHED
