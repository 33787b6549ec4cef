"""The law of a training step by its layout, and its fit to a few measured rows.

A step is a sum of a few terms. Each is a quantity of the layout alone (FLOPs over the peak, bytes
over a link's rate, passes of a layer, hops between stages) times a non-negative coefficient. The
coefficients have prior expectations by GPU, which measured rows update.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.config.run import value_bytes
from lab.perfmodel.collectives import Level
from lab.perfmodel.hardware import Machine
from lab.perfmodel.layout import Candidate, Checkpointing, Sharing
from lab.perfmodel.memory import (
    ACCUMULATED,
    BF16,
    FP32,
    MIXED,
    USABLE,
    MemoryParts,
    StateBytes,
    transformer_memory,
)
from lab.perfmodel.transformer import Transformer


@dataclass(frozen=True)
class Framework:
    """How a framework splits its pipelines, and how it differs from the general expectation.

    `pattern` matches the words by which a table names it. Stages of a `balanced` pipeline have
    equal FLOPs, including the head's; others equal layers. `sequence_parallel` says that its tensor
    parallelism splits sequences as well, `counts_recomputed` that its FLOP/s include recomputed
    passes, `halves_attention` that they omit its masked half. `sharing` is how its replicas share
    state if a table does not say, and `hides_shards` that ZeRO's gradients are sent during the last
    backward pass, as DDP's are, and its parameters during the next forward pass. `hides_transfers`
    says that an interleaved pipeline hands on while it computes. Launches and products hide each
    other as a p-norm with exponent `hides`: the higher it is, the more the longer one alone counts.
    `hides_sums` says that launches hide the sums of tensor parallelism as well, `overlaps_sums`
    that they are cut up and sent while products are computed, `dispatches_once` that a token for
    several experts of another node is sent there once (DeepEP). On more nodes than its `reach`, the
    transfers of a pipeline are delayed. If a table does not say, `recomputed` is the share of the
    forward pass that is taken to be recomputed, `keeps` the checkpointing by which memory is
    counted, `interleave` the stages of a rank. `shard_bytes` are what ZeRO sums and gathers at a
    time. `state`, `sharded_state` and `fused` are those of `transformer_memory`, `usable` is the
    share of a GPU's nominal memory for training, `offloads` that of the layers whose activations
    FSDP moves to a Grace host. `coefficients` are those of the law of layouts with different
    expectations, with the deviation of their logarithm.
    """

    name: str = ""
    pattern: str = ""
    balanced: bool = False
    sequence_parallel: bool = False
    counts_recomputed: bool = False
    halves_attention: bool = False
    sharing: Sharing = "ddp"
    hides_shards: bool = False
    hides_transfers: bool = False
    hides: float = 2.0
    hides_sums: bool = False
    overlaps_sums: bool = False
    dispatches_once: bool = False
    recomputed: float = 0.5  # half a pass is the smaller error either way
    keeps: Checkpointing = "selective"  # half of the activations, to agree with it
    shard_bytes: float = 1e9  # DeepSpeed's reduce_bucket_size, 5e8 values of 2 bytes
    reach: float = math.inf
    interleave: int = 1
    state: StateBytes = ACCUMULATED
    sharded_state: StateBytes = FP32
    fused: bool = False
    usable: float = USABLE
    offloads: float = 0.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


BUCKET_BYTES = 25 * 2**20  # of gradients that are sent together: DDP's default
ANY = Framework()
# nanotron: a fit to the 336 layouts of one model on H100s that `lab bench public` finds
# undisturbed (Ultra-Scale Playbook 2025; tp <= 8). Launching a pass of a layer takes at least 1.2
# ms, which a long enough layer hides completely; tensor-parallel sums hide behind launches, and
# the ranks of a pipeline across nodes wait for each other. `stall` is the median of 45 pipelines
# that took over twice as long as that fit: each transfer of their middle stages 0.27 s instead
# of 0.2 ms, in 18 of 19 pipelines on 64 nodes, 14 of 39 on 32, and 8 of 50 on 16.
NANOTRON = Framework(
    name="nanotron",
    pattern=r"\bnanotron\b",
    balanced=True,
    sequence_parallel=True,
    hides=8.0,
    hides_sums=True,
    keeps="none",  # its peaks are those of all activations
    shard_bytes=BUCKET_BYTES,
    reach=32,
    coefficients={
        "flops": (1.57, 0.15),
        "launch": (1.2e-3, 0.3),
        "memory": (6.0, 0.3),
        "head": (0.94, 0.3),
        "tensor_bytes": (0.75, 0.5),
        "tensor_messages": (0.8, 0.5),
        "data": (2.8, 0.5),
        "data_messages": (1.5, 0.5),
        "crossing": (6e-4, 0.5),
        "nodes": (1.3e-3, 0.7),
        "stall": (0.27, 0.2),
    },
)
# Megatron-DeepSpeed up to 2024, measured by vTrain: attention is not fused, so that its scores are
# written and read several times. Nor is it in Megatron-LM up to 2022, before FlashAttention.
MEGATRON = Framework(
    name="megatron",
    pattern=r"megatron.?deepspeed|vtrain"
    r"|(?=.*\bmegatron.?lm\b).*\b20(19|2[0-2])\b",
    counts_recomputed=True,
    coefficients={"scores": (5.9, 0.5)},
)
# Megatron-Core since 2023, as its README benchmarks it: a distributed optimizer whose gradients and
# parameters are sent in large buffers while it computes (overlap_grad_reduce,
# overlap_param_gather), split sequences, activations sent while products run (tp_comm_overlap),
# tokens by DeepEP, gates and loss fused, nothing recomputed unless stated. cuDNN's attention skips
# the masked half and reaches half of the peak or more; the buffers are sent as FSDP's gathers are.
MEGATRON_CORE = Framework(
    name="megatron-core",
    pattern=r"megatron.?core|\bmcore\b"
    r"|(?=.*megatron)(?=.*(\b202[3-9]\b|fp[48]|(?<![a-z])(h[128]00|gh200|g?b[23]00|mi3\d\dx)))",
    sequence_parallel=True,
    sharing="zero1",
    hides_shards=True,
    hides_transfers=True,
    overlaps_sums=True,
    dispatches_once=True,
    recomputed=0.0,
    keeps="none",
    interleave=2,  # half of the bubble is the smaller error either way
    fused=True,
    usable=1.03,  # all but 4 % of the card's GiB, which expandable segments do not fragment
    coefficients={"attention": (0.5, 0.4), "data": (1.2, 0.6)},
)
# NeMo and Megatron-Bridge on the same core: their tables give tokens/s and FLOP/s, which differ by
# this half. Their recipes for benchmarks sum gradients in bf16 (grad_reduce_in_fp32=False).
NEMO = replace(
    MEGATRON_CORE,
    name="nemo",
    pattern=r"\bnemo\b|megatron.?bridge",
    halves_attention=True,
    state=MIXED,
    offloads=0.5,  # cpu_offloading_num_layers of its recipes for FSDP: 20 to 40 of 80
)
# NeMo AutoModel has FSDP2 instead of the core, but its kernels and DeepEP. Its recipes recompute
# (activation_checkpointing) and train weights in bf16 by torch.optim.Adam.
AUTOMODEL = replace(
    NEMO,
    name="automodel",
    pattern=r"\bauto.?model\b",
    sharing="fsdp",
    recomputed=1.0,
    keeps="full",
    state=BF16,
    sharded_state=BF16,
    offloads=0.0,
)
# torchtitan's tensor parallelism splits sequences: its Llama plans use SequenceParallel (2024). It
# shards over all replicas by default (data_parallel_shard_degree = -1).
TORCHTITAN = Framework(
    name="torchtitan", pattern=r"torch.?titan", sequence_parallel=True, sharing="fsdp"
)
FRAMEWORKS = (NANOTRON, MEGATRON, AUTOMODEL, NEMO, MEGATRON_CORE, TORCHTITAN)
# The lab's own loop, eager and compiled: fits to GPT-2 on one H200 in bf16 (reports/gpu-training),
# with the products' share of peak as expected of all H200s. Compiled code reads and writes less.
LAB, COMPILED_LAB = (
    Framework(
        name="lab",
        coefficients={
            "attention": (attention, 0.4),
            "launch": (launch, 0.5),
            "memory": (memory, 0.3),
            "head": (head, 0.3),
            "optimizer": (2.0, 0.2),  # reads gradients once more, to clip them
            "constant": (5e-4, 1.0),
        },
    )
    for attention, launch, memory, head in ((1.1, 2.1e-4, 1.6, 1.0), (0.95, 1.4e-4, 1.0, 0.85))
)


def named_framework(text: str) -> Framework:
    """The framework named in some words, or the general one if none is recognized."""
    named = (one for one in FRAMEWORKS if re.search(one.pattern, text, re.IGNORECASE | re.DOTALL))
    return next(named, ANY)


Floats = npt.NDArray[np.float64]
# What the law fitted to a whole table leaves of its rows: 5 to 8 %.
ROW_ERROR, TAIL = 0.08, 2.0  # relative; the influence of errors fades beyond TAIL times that
LEFT_ERROR = 0.08  # relative, of what the terms omit, if there are too few rows to estimate it


@dataclass(frozen=True)
class Coefficient:
    """A coefficient's prior expectation, and the deviation of its logarithm.

    Without a unit it multiplies the time by vendor figures.
    """

    expected: float
    spread: float
    meaning: str


# Expectations of A100s: a fit to Megatron-DeepSpeed's layouts on one node (vTrain's 1440, 2024) and
# FSDP's on up to 16 (llm-foundry's 78), which counts both tables alike; `crossing` and `stall` to
# nanotron's (Ultra-Scale Playbook 2025).
COEFFICIENTS = {
    "flops": Coefficient(1.5, 0.15, "products, over the peak: its inverse is the share reached"),
    "attention": Coefficient(1.2, 0.4, "attention's FLOPs, over those of as long a product"),
    "recompute": Coefficient(0.65, 0.3, "recomputed forward passes, over a third of the others"),
    "scores": Coefficient(0.1, 2.0, "attention's scores, over memory's rate; little if fused"),
    "launch": Coefficient(7.6e-4, 0.5, "s to launch a layer's pass, which products hide"),
    "memory": Coefficient(2.4, 0.6, "reads and writes of a layer's values, over memory's rate"),
    "head": Coefficient(1.4, 0.5, "head and loss, over products and memory"),
    "tensor_bytes": Coefficient(0.8, 0.5, "sums of tensor parallelism, over the links' rate"),
    "tensor_messages": Coefficient(3.5, 0.7, "messages of these sums, over the links' latency"),
    "data": Coefficient(2.7, 0.6, "gradients, over the links' rate"),
    "gathers": Coefficient(1.2, 0.6, "FSDP's gathers and scatters, over the links' rate"),
    "data_messages": Coefficient(0.6, 0.7, "messages of these, over the links' latency"),
    "stage": Coefficient(4e-4, 1.0, "s to hand a micro-batch on to the next stage"),
    "stage_bytes": Coefficient(1.0, 0.7, "what stages hand on, over the links' rate"),
    "stall": Coefficient(0.27, 0.5, "s of a delayed transfer, beyond the framework's reach"),
    "crossing": Coefficient(2e-5, 2.0, "s that tensor parallel ranks lose per layer's pass where "
                            "their pipeline crosses nodes"),
    "optimizer": Coefficient(1.0, 0.5, "state that the optimizer reads and writes"),
    "nodes": Coefficient(2e-3, 1.5, "s of a step per node"),
    "constant": Coefficient(3e-3, 1.0, "s of a step"),
}  # fmt: skip
NAMES = tuple(COEFFICIENTS)
_SPREADS = np.array([coefficient.spread for coefficient in COEFFICIENTS.values()])
# Inverse shares of peak by generation. H100s reach a smaller share: MLPerf and the playbook. Dense
# models in 16 bits reach 0.43 to 0.59 on Blackwell as a whole (Megatron-LM and its Bridge), and
# large products alone half of the peak on MI300X and MI350X, as against 0.73 on H100.
FLOPS_BY_GPU = {
    **dict.fromkeys(("h100", "h200", "gh200", "h800"), 2.0),
    **dict.fromkeys(("b200", "b300", "gb200", "gb300"), 1.8),
    **dict.fromkeys(("mi300x", "mi325x", "mi350x", "mi355x"), 2.5),
}
NARROW = ("fp8", "fp4")
# Routing, sorting, dispatch and combination at least double the kernels of a layer: the host bounds
# such models (Scalable Training of Mixture-of-Experts Models with Megatron Core, 2026).
EXPERT_LAUNCHES = 2.0
MOST_NODES = 64  # of the playbook's layouts
OPTIMIZER_BYTES = 28  # AdamW in fp32: weights, gradients, both moments read, all but one written
STOLEN = 0.1  # of the time in which gathers and passes run at once: NCCL takes multiprocessors
_HIDES = 2.0  # gathers or gradients and passes hide each other: root of the sum of squares


@dataclass(frozen=True)
class Case:
    """A model trained on sequences of a given length, in one layout, on one machine."""

    model: Transformer
    sequence: int
    candidate: Candidate
    machine: Machine
    recomputed: float | None = None  # share of the forward pass; None: as in the candidate
    framework: Framework = ANY

    @property
    def passes(self) -> float:
        """Work in units of forward passes: the backward pass is two, plus recomputation."""
        if self.recomputed is not None:
            return 3 + self.recomputed
        return 4.0 if self.candidate.checkpointing == "full" else 3.0

    def memory(self, *, first_stage: bool = False) -> MemoryParts:
        """Peak bytes of the fullest rank, or of rank 0, as the framework holds them."""
        framework, grace = self.framework, self.machine.gpu.name.startswith("g")
        sharded = self.candidate.layout.sharing == "fsdp"
        return transformer_memory(
            self.model,
            self.sequence,
            self.candidate,
            state=framework.state,
            sharded_state=framework.sharded_state,
            balanced=framework.balanced,
            fused=framework.fused,
            offloaded=framework.offloads if sharded and grace else 0.0,
            first_stage=first_stage,
        )

    @property
    def fits(self) -> bool:
        """Whether the fullest rank's peak fits into its GPU."""
        room = self.framework.usable * self.machine.gpu.memory_bytes
        return self.memory().total <= room


def quantities(cases: Sequence[Case]) -> dict[str, Floats]:
    """The terms' quantities: s by vendor figures, and counts of passes, hops and nodes."""
    rows = [_quantities(case) for case in cases]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def _quantities(case: Case) -> dict[str, float]:
    model, candidate, machine = case.model, case.candidate, case.machine
    layout, accum = candidate.layout, candidate.grad_accum
    tensor, stages, data = layout.tensor, layout.pipeline, layout.data
    tokens = candidate.micro_batch * case.sequence / layout.context
    passes = case.passes
    attention = 3 * model.attention_flops(tokens, case.sequence) / tensor
    peak, memory = machine.gpu.fastest(candidate.precision), machine.gpu.memory_bytes_per_s
    # Attention and the head stay in 16 bits where the layers' products have fewer.
    half = machine.gpu.fastest("bf16" if candidate.precision in NARROW else candidate.precision)
    value = value_bytes(candidate.precision)
    handed = tokens * model.width * value / (tensor if layout.sequence_parallel else 1)
    longest, last = model.stage_layers(stages, balanced=case.framework.balanced)
    # The first micro-batch passes through all layers; each further one ends a stage later.
    others = (stages - 1) * longest
    if stages == 1 or stages > model.layers or case.framework.balanced:
        others = model.layers - longest
    through = longest + others * layout.idle(passes) / layout.interleave
    split = tokens * (model.hidden * model.active * (2 if model.gated else 1) + 3 * model.width)
    # Tokens are copied for each of their experts: sorted, sent, received and put back in order.
    split += 4 * tokens * model.active * model.width * (model.experts > 1)
    sums = (2 * passes - 2) if tensor > 1 else 0
    level = machine.levels(tensor)
    summed = tokens * model.width * value
    # With sequence parallelism each sum is a scatter and a gather, which no switch shortens.
    summed_s = 2 * _ring(level, summed) if layout.sequence_parallel else _sum(level, summed)
    exchanged = _exchanged(case, tokens, value, passes)
    routed = model.routed / layout.expert
    weights = (longest * (model.block() - model.routed + routed) + model.embedding) / tensor
    # Ranks that share experts neither sum nor gather those of the others.
    experts = longest * routed / tensor * value
    shared = weights * value - experts
    zero = layout.sharing in {"zero1", "zero2"}
    buckets = math.ceil(weights * value / (case.framework.shard_bytes if zero else BUCKET_BYTES))
    every_expert = model.layers * model.routed
    gathered = (model.parameters - every_expert) / (tensor * stages) * value
    gathered_experts = model.layers * routed / (tensor * stages) * value
    whole = layout.sharing == "fsdp" and layout.shards > 1
    # DDP sums gradients during the last micro-batch's backward pass, as FSDP's replicas do those of
    # their shards; most ZeRO does so after it.
    backward = (passes - 1) / passes if layout.sharing == "ddp" or whole else 0.0
    if zero and case.framework.hides_shards:
        backward = 1.0
    alongside = case.framework.hides_transfers and layout.interleave > 1
    steady = 0 if alongside else accum * layout.interleave - 1
    hops = 2 * (steady + stages - 1) if stages > 1 else 0
    # A stage between two others sends and receives twice per micro-batch, the first and last once.
    transfers = accum * layout.interleave * min(4, 2 * (stages - 1)) + stages - 1
    crosses = tensor * data * stages > machine.gpus_per_node
    cards = machine.outer if crosses else machine.inner
    state = weights / layout.optimizer_shards
    nodes = math.ceil(layout.world_size / machine.gpus_per_node)
    groups = machine.levels(layout.shards, stride=tensor)
    expert_shards = max(layout.shards // layout.expert, 1)
    expert_groups = machine.levels(expert_shards, stride=tensor * layout.expert)
    if whole:
        replicas = machine.levels(layout.replicas, stride=tensor * layout.shards)
        sums_s = _sum(replicas, shared / layout.shards + experts / expert_shards)
        sum_messages = 2 * longest * _messages(replicas)
    else:
        sums_s = _sum(groups, shared) + _sum(expert_groups, experts)
        sum_messages = 2 * buckets * _messages(groups)
    return {
        "layer_flops": (3 * model.layer_flops(tokens, case.sequence) / tensor - attention) / peak,
        "layer_attention": attention / half,
        "layer_memory": 3 * (value / 2) * (2 * handed / value + 2 * split / tensor) / memory,
        "layer_scores": 3 * value * tokens * case.sequence * model.heads / tensor / memory,
        "recomputed": passes / 3 - 1,
        "layer_launch": passes * (EXPERT_LAUNCHES if model.experts > 1 else 1),
        "layer_tensor": sums * summed_s + exchanged,
        "layer_messages": sums * _messages(level),
        "layer_crossing": passes * tensor * (stages > 1 and tensor > 1 and crosses),
        "visits": through + (accum - 1) * longest,
        "visits_last": through + (accum - 1) * last,
        "head_flops": 6 * model.embedding * tokens / tensor / half,
        "head_memory": 12 * model.vocabulary * tokens / tensor / memory,
        "accum": accum,
        "hides": case.framework.hides,
        "hides_sums": case.framework.hides_sums,
        "overlaps_sums": case.framework.overlaps_sums,
        "gathers": 3 * (_ring(groups, gathered) + _ring(expert_groups, gathered_experts))
        if whole
        else 0.0,
        # A pipeline keeps what it gathered for all its micro-batches.
        "gatherings": 1 if stages > 1 else accum,
        "gather_messages": 3 * longest * _messages(groups) if whole else 0.0,
        "hiding": longest * backward,
        "data": sums_s,
        "data_messages": sum_messages,
        "stage": hops,
        "stall": transfers if nodes > case.framework.reach else 0,
        "stage_bytes": hops * handed / cards.bytes_per_s,
        "optimizer": state * OPTIMIZER_BYTES / memory,
        "nodes": _waits(nodes) if data > 1 else 0,
    }


def _waits(nodes: int) -> float:
    """As many, but the wait for the slowest of more nodes than measured grows by its logarithm."""
    return nodes if nodes <= MOST_NODES else MOST_NODES * (1 + math.log(nodes / MOST_NODES))


def _ring(levels: Sequence[Level], size: float) -> float:
    """Seconds to gather or scatter `size` bytes within each level in turn."""
    return sum(size * (level.parts - 1) / level.parts / level.bytes_per_s for level in levels)


def _sum(levels: Sequence[Level], size: float) -> float:
    """Seconds to sum `size` bytes by rings, or by switches that can, within each level in turn."""
    return sum(replace(level, alpha_s=0.0).seconds("all_reduce", size) for level in levels)


def _messages(levels: Sequence[Level]) -> float:
    return sum((level.parts - 1) * level.alpha_s for level in levels)


def _exchanged(case: Case, tokens: float, value: int, passes: float) -> float:
    """Seconds of a layer's keys and values round a context ring, and of tokens via experts."""
    layout, model, machine = case.candidate.layout, case.model, case.machine
    seconds = 0.0
    if layout.context > 1:
        keys = 2 * tokens * layout.context * model.width * model.key_value_share * value
        ranks = machine.levels(layout.context, stride=layout.tensor)
        seconds += passes * _ring(ranks, keys / layout.tensor)
    if layout.expert > 1:
        # There and back; a rank keeps the share of its own experts. Ranks that split sequences
        # send their own tokens, to experts on all ranks of a node.
        split = layout.tensor if layout.sequence_parallel else 1
        copy = 2 * tokens / split * model.width * value
        inside, outside = _times_sent(case, layout.tensor // split)
        inner, outer = machine.inner, machine.outer
        seconds += passes * copy * inside / (inner.bytes_per_s * inner.reached)
        seconds += passes * copy * outside / (outer.bytes_per_s * outer.reached)
    return seconds


def _times_sent(case: Case, stride: int) -> tuple[float, float]:
    """How often a rank sends a token to experts of its node, and of others by its own card.

    Experts are equally likely. Tokens may be sent once to each node where experts want them.
    """
    ranks, copies = case.candidate.layout.expert, case.model.active - case.model.shared
    near = min(max(case.machine.gpus_per_node // stride, 1), ranks)
    inside, outside = copies * (near - 1) / ranks, copies * (1 - near / ranks)
    if case.framework.dispatches_once:
        others = ranks / near - 1
        outside = others * (1 - (1 - near / ranks) ** copies)
    return inside, outside


def parts(q: Mapping[str, Floats], coefficients: Mapping[str, Any]) -> dict[str, Floats]:
    """Seconds of a step by cause; their sum is the step."""
    c = coefficients
    # Communication is launched too: tensor parallel calls across a pipeline's nodes.
    launch = c["launch"] * q["layer_launch"] + c["crossing"] * q["layer_crossing"]
    products = q["layer_flops"] + c["attention"] * q["layer_attention"]
    swept = c["memory"] * q["layer_memory"] + c["scores"] * q["layer_scores"]
    # A forward pass takes less than half of a backward pass, which also reads what it kept.
    dense = (c["flops"] * products + swept) * (1 + c["recompute"] * q["recomputed"])
    layer = _larger(dense, launch, q["hides"])
    head = c["head"] * (c["flops"] * q["head_flops"] + c["memory"] * q["head_memory"])
    sums = c["tensor_bytes"] * q["layer_tensor"] + c["tensor_messages"] * q["layer_messages"]
    behind = _larger(dense + sums, launch, q["hides"]) - layer
    beside = _larger(layer, sums, _HIDES) - layer
    tensor = np.where(q["hides_sums"], behind, np.where(q["overlaps_sums"], beside, sums))
    # A pipeline is as fast as the slower of its longest stage and its last, which has the head.
    ends = q["visits_last"] * (layer + tensor) + q["accum"] * head
    slowest = q["visits"] * (layer + tensor) + head > ends
    visits = np.where(slowest, q["visits"], q["visits_last"])
    compute = visits * layer + np.where(slowest, 1, q["accum"]) * head
    passed = compute + visits * tensor
    each = c["gathers"] * q["gathers"] + c["data_messages"] * q["gather_messages"]
    gathered = q["gatherings"] * each
    gathers = _larger(passed, gathered, _HIDES) - passed + STOLEN * np.minimum(passed, gathered)
    hiding = q["hiding"] * (layer + tensor)
    summed = c["data"] * q["data"] + c["data_messages"] * q["data_messages"]
    gradients = _larger(hiding, summed, _HIDES) - hiding
    return {
        "compute": compute,
        "tensor parallelism": visits * tensor,
        "data parallelism": gathers + gradients + c["nodes"] * q["nodes"],
        "stages": c["stage"] * q["stage"]
        + c["stage_bytes"] * q["stage_bytes"]
        + c["stall"] * q["stall"],
        "optimizer": c["optimizer"] * q["optimizer"],
        "constant": np.asarray(c["constant"] + 0.0 * q["visits"]),
    }


def _larger(one: Floats, other: Floats, power: Floats | float) -> Floats:
    """A smooth maximum of two times that hide each other."""
    return np.asarray((one**power + other**power) ** (1 / power))


@dataclass(frozen=True)
class LayoutLaw:
    """Coefficients by name, the number of rows they were fitted to, and their uncertainty.

    `covariance` is that of the logarithms, `error` the relative deviation of a row.
    """

    coefficients: dict[str, float]
    rows: int = 0
    error: float = LEFT_ERROR
    covariance: Floats = field(repr=False, default_factory=lambda: np.diag(_SPREADS**2))

    def parts(self, case: Case) -> dict[str, float]:
        """Seconds of a step by cause."""
        every = parts(quantities([case]), self.coefficients)
        return {name: float(seconds[0]) for name, seconds in every.items()}

    def predict(self, cases: Sequence[Case]) -> Floats:
        """Seconds of a step for each case."""
        every = parts(quantities(cases), self.coefficients).values()
        return np.asarray(sum(every, np.zeros(len(cases))))

    def intervals(self, cases: Sequence[Case]) -> tuple[Floats, Floats]:
        """The ends of the 95 % interval in s."""
        from scipy.stats import t

        q, at = quantities(cases), np.log([self.coefficients[name] for name in NAMES])
        steps = np.exp(_log_step(q, at))
        step = 1e-4
        slopes = [
            (_log_step(q, at + step * unit) - np.log(steps)) / step for unit in np.eye(len(NAMES))
        ]
        slope = np.stack(slopes)
        variance = self.error**2 + np.einsum("ir,ij,jr->r", slope, self.covariance, slope)
        factor = np.exp(t.ppf(0.975, max(self.rows - 1, 3)) * np.sqrt(variance))
        return steps / factor, steps * factor


def _log_step(q: Mapping[str, Floats], logarithms: Floats) -> Floats:
    every = parts(q, dict(zip(NAMES, np.exp(logarithms), strict=True))).values()
    return np.asarray(np.log(sum(every, np.zeros(len(q["visits"])))))


def expected(gpu: str = "", framework: Framework = ANY) -> LayoutLaw:
    """The prior law, for a GPU by its name in the table and for a framework."""
    values = {name: (one.expected, one.spread) for name, one in COEFFICIENTS.items()}
    family = next((name for name in FLOPS_BY_GPU if gpu.startswith(name)), "")
    if family:
        values["flops"] = FLOPS_BY_GPU[family], values["flops"][1]
    values |= framework.coefficients
    spreads = np.array([values[name][1] for name in NAMES])
    return LayoutLaw({name: values[name][0] for name in NAMES}, covariance=np.diag(spreads**2))


def _linear(errors: Floats) -> Floats:
    """Roots of a loss that grows linearly with large errors, not as their square (pseudo-Huber)."""
    return np.asarray(np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1)))


def _bounded(errors: Floats) -> Floats:
    """Roots of a loss whose influence fades beyond TAIL (Cauchy)."""
    return np.asarray(np.sign(errors) * TAIL * np.sqrt(np.log1p((errors / TAIL) ** 2)))


def fit(cases: Sequence[Case], step_s: Sequence[float]) -> LayoutLaw:
    """Fit the coefficients to measured steps (s), weighing the rows against prior expectations.

    Logarithms of ratios are compared, so that short and long steps count equally; outliers, such as
    rows disturbed by a crashed neighbour, weigh less the further they lie from the other rows.
    """
    from scipy.optimize import least_squares

    if not cases:
        return expected()
    gpus = [case.machine.gpu.name for case in cases]
    prior = expected(max(set(gpus), key=gpus.count), cases[0].framework)
    spreads = np.sqrt(np.diag(prior.covariance))
    centre = np.log([prior.coefficients[name] for name in NAMES])
    q, measured = quantities(cases), np.log(np.asarray(step_s, dtype=float))

    def costs(tamed: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
        return lambda logarithms: np.concatenate(
            [
                tamed((_log_step(q, logarithms) - measured) / ROW_ERROR),
                (logarithms - centre) / spreads,
            ]
        )

    near = least_squares(costs(_linear), centre, max_nfev=100)
    # The loss that bounds the influence of outliers has several minima.
    solutions = [least_squares(costs(_bounded), start, max_nfev=100) for start in (near.x, centre)]
    solution = min(solutions, key=lambda one: float(one.cost))
    left = np.abs(_log_step(q, solution.x) - measured)
    own = 1.4826 * float(np.median(left)) * math.sqrt(len(left) / max(len(left) - 4, 1))
    return LayoutLaw(
        coefficients=dict(zip(NAMES, np.exp(solution.x).tolist(), strict=True)),
        rows=len(cases),
        error=max(own, LEFT_ERROR / 2),
        covariance=np.linalg.inv(solution.jac.T @ solution.jac),
    )
