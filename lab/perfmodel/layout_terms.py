"""What a training step takes by its layout: the memory of a rank, and what each cause has to do.

A term is a quantity of the layout alone (FLOPs over the peak, bytes over a link's rate, passes of a
layer, hops between stages) times a coefficient, which the law of layouts fits to measured rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lab.config.run import value_bytes
from lab.perfmodel.collectives import Level
from lab.perfmodel.frameworks import ANY, BUCKET_BYTES, Framework
from lab.perfmodel.hardware import Machine
from lab.perfmodel.layout import SHARDED, Candidate, Layout
from lab.perfmodel.memory import MemoryParts, state_memory
from lab.perfmodel.transformer import Transformer

Floats = npt.NDArray[np.float64]
NARROW = ("fp8", "fp4")
AMPERE = ("a100", "a800")
HOPPER = ("h100", "h200", "gh200", "h800")
# Routing, sorting, dispatch and combination at least double the kernels of a layer: the host bounds
# such models (Scalable Training of Mixture-of-Experts Models with Megatron Core, 2026).
EXPERT_LAUNCHES = 2.0
MOST_NODES = 64  # of the playbook's layouts
OPTIMIZER_BYTES = 28  # AdamW in fp32: weights, gradients, both moments read, all but one written
STOLEN = 0.1  # of the time in which gathers and passes run at once: NCCL takes multiprocessors
_HIDES = 2.0  # gathers or gradients and passes hide each other: root of the sum of squares

# Bytes held relative to those of the matrices' values, without and with a gate, which comes with
# copies in fp32 and of rotations; bytes of a logit with its gradient, which gated code also holds
# in fp32, a little of it undivided on every tensor parallel rank; bytes of an idle rank.
# With a gate: the peaks of 525 layouts of nanotron (Ultra-Scale Playbook 2025); without: the
# micro-batches that ran in 40 GB (llm-foundry's benchmarks of MPT).
PLAIN, GATED, IDLE = 1.0, 1.62, 0.4e9
LOGIT, GATED_LOGIT, WHOLE_LOGIT = 6, 12, 0.6
# Transformer Engine's loss overwrites a copy of the logits in bf16 with their gradients.
FUSED_LOGIT = 4


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

    @property
    def tokens(self) -> float:
        """Tokens of a micro-batch on one rank."""
        return self.candidate.micro_batch * self.sequence / self.candidate.layout.context

    @property
    def value(self) -> int:
        """Bytes of an activation."""
        return value_bytes(self.candidate.precision)

    @property
    def peak_of_16_bits(self) -> float:
        """FLOP/s for attention and the head, which narrower products leave in 16 bits."""
        precision = self.candidate.precision
        return self.machine.gpu.fastest("bf16" if precision in NARROW else precision)

    @property
    def stage_layers(self) -> tuple[int, int]:
        """Layers of the longest and of the last stage."""
        stages, balanced = self.candidate.layout.pipeline, self.framework.balanced
        return self.model.stage_layers(stages, balanced=balanced)

    @property
    def handed_on(self) -> float:
        """Bytes of a micro-batch that a rank's layer hands on to the next."""
        layout = self.candidate.layout
        whole = self.tokens * self.model.width * self.value
        return whole / (layout.tensor if layout.sequence_parallel else 1)

    @property
    def crosses_nodes(self) -> bool:
        """Whether the pipeline with its replicas needs more than one node."""
        layout = self.candidate.layout
        return layout.tensor * layout.data * layout.pipeline > self.machine.gpus_per_node

    def memory(self, *, first_stage: bool = False) -> MemoryParts:
        """Peak bytes of the fullest rank, or of rank 0, which is in the `first_stage`.

        Most programs print the peak of rank 0. FSDP's shards have another state, and are gathered
        as they are computed, those of a pipeline once.
        """
        model, framework, layout = self.model, self.framework, self.candidate.layout
        gathers = layout.sharing == "fsdp" and layout.shards > 1
        state = framework.sharded_state if gathers else framework.state
        longest, _ = self.stage_layers
        dense, experts = model.block() - model.routed, model.routed / layout.expert
        # Where stages cannot be equal, the first and the last have fewer layers than those between,
        # but an embedding.
        uneven = bool(model.layers % layout.pipeline) and not framework.balanced
        between = uneven and not first_stage and dense + experts > model.embedding
        embeddings = 0 if between else 1 if model.tied or layout.pipeline > 1 else 2
        # An expert has fewer copies than the rest of the model, which share less of its state.
        own, of_experts = (
            state_memory(
                count / layout.tensor, sharded=SHARDED[layout.sharing], ranks=ranks, state=state
            )
            for count, ranks in (
                (longest * dense + embeddings * model.embedding, layout.shards),
                (longest * experts, max(layout.shards // layout.expert, 1)),
            )
        )
        first, last = self._activations(between=between)
        alone = first_stage and layout.pipeline > 1
        blocks = longest if layout.pipeline > 1 else 2  # for all micro-batches, or one ahead
        return MemoryParts(
            weights=own.weights + of_experts.weights,
            gradients=own.gradients + of_experts.gradients,
            optimizer=own.optimizer + of_experts.optimizer,
            activations=(first if alone else max(first, last)) + IDLE,
            gathered=blocks * (dense + experts) * self.value / layout.tensor if gathers else 0.0,
        )

    def _activations(self, *, between: bool) -> tuple[float, float]:
        """Bytes of activations in the first stage, or in one `between`, and in the last.

        A pipeline's first stage holds the activations of as many micro-batches as there are stages,
        its last those of one plus the logits (Narayanan et al. 2021); zero-bubble schedules hold
        them for the weights' gradients in every stage (Qi et al. 2023). Balanced stages count the
        head as layers.
        """
        model, framework, layout = self.model, self.framework, self.candidate.layout
        accum, (longest, rest) = self.candidate.grad_accum, self.stage_layers
        kept, once = self._kept
        ahead = (layout.pipeline - 1) / layout.interleave if layout.interleave > 1 else 0.0
        later = between * (2 / layout.interleave if layout.interleave > 1 else 1)
        first = min(accum, layout.in_flight + ahead - later) * longest * kept + once
        delayed = 1 if layout.schedule == "1f1b" else min(accum, layout.in_flight)
        logit = (FUSED_LOGIT if framework.fused else LOGIT) / layout.tensor
        if self._copies:
            logit = GATED_LOGIT / layout.tensor + WHOLE_LOGIT
        last = delayed * rest * kept + once + logit * model.vocabulary * self.tokens
        return first, last

    @property
    def _copies(self) -> bool:
        """Whether a gate's and the loss's values are copied, as they are not in fused code."""
        return self.model.gated and not self.framework.fused

    @property
    def _kept(self) -> tuple[float, float]:
        """Bytes of a micro-batch that a layer keeps, and that one needs while it is recomputed.

        Attention is fused. Full checkpointing keeps the input of each layer, and all activations of
        one; selective checkpointing keeps half of the activations. Without sequence parallelism
        every tensor parallel rank holds the full inputs of attention and MLP. A Grace host holds
        what the layers keep that FSDP offloads.
        """
        model, candidate = self.model, self.candidate
        layout = candidate.layout
        mlp = (3 if model.gated else 2) * model.hidden * model.active
        split = mlp + 2 * model.width * (1 + model.key_value_share)
        copies = GATED if self._copies else PLAIN
        layer = copies * self.value * self.tokens * split / layout.tensor + 2 * self.handed_on
        kept, once = layer, 0.0
        if candidate.checkpointing == "selective":
            kept = layer / 2  # torchtitan recomputes every other product, or every other layer
        if candidate.checkpointing == "full":
            kept, once = self.handed_on, layer
        if layout.sharing == "fsdp" and self.machine.gpu.name.startswith("g"):
            kept *= 1 - self.framework.offloads
        return kept, once

    @property
    def fits(self) -> bool:
        """Whether each stage has a layer, and the fullest rank's peak fits into its GPU."""
        room = self.framework.usable * self.machine.gpu.memory_bytes
        stages = self.candidate.layout.pipeline
        return stages <= self.model.layers and self.memory().total <= room


def quantities(cases: Sequence[Case]) -> dict[str, Floats]:
    """The terms' quantities: s by vendor figures, and counts of passes, hops and nodes."""
    groups = (_layer, _head, _tensor, _visits, _replicas, _stages, _delays)
    rows = [
        {name: value for group in groups for name, value in group(case).items()} for case in cases
    ]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in rows[0]}


def further_nodes(layout: Layout, machine: Machine) -> float:
    """The nodes beyond the first whose replicas a step waits for.

    Those beyond MOST_NODES count by the logarithm.
    """
    if layout.data == 1:
        return 0.0
    nodes = math.ceil(layout.world_size / machine.gpus_per_node)
    return min(nodes, MOST_NODES * (1 + math.log(max(nodes / MOST_NODES, 1)))) - 1


def _layer(case: Case) -> dict[str, float]:
    """Passes of a micro-batch through a layer; the backward pass counts as two."""
    model, gpu, tensor = case.model, case.machine.gpu, case.candidate.layout.tensor
    tokens, value, passes = case.tokens, case.value, case.passes
    attention = 3 * model.attention_flops(tokens, case.sequence) / tensor
    products = 3 * model.layer_flops(tokens, case.sequence) / tensor - attention
    split = tokens * (model.hidden * model.active * (2 if model.gated else 1) + 3 * model.width)
    # Tokens are copied for each of their experts: sorted, sent, received and put back in order.
    split += 4 * tokens * model.active * model.width * (model.experts > 1)
    swept = 3 * (value / 2) * (2 * case.handed_on / value + 2 * split / tensor)
    scores = 3 * value * tokens * case.sequence * model.heads / tensor
    wide = case.candidate.precision not in NARROW and gpu.name.startswith(HOPPER)
    slack = case.framework.wide if wide and model.experts == 1 else 1.0
    return {
        "layer_flops": slack * products / gpu.fastest(case.candidate.precision),
        "layer_attention": attention / case.peak_of_16_bits,
        "layer_memory": swept / gpu.memory_bytes_per_s,
        "layer_scores": scores / gpu.memory_bytes_per_s,
        "recomputed": passes / 3 - 1,
        "layer_launch": passes * (EXPERT_LAUNCHES if model.experts > 1 else 1),
        "hides": case.framework.hides,
    }


def _head(case: Case) -> dict[str, float]:
    model, tensor = case.model, case.candidate.layout.tensor
    memory = 12 * model.vocabulary * case.tokens / tensor
    return {
        "head_flops": 6 * model.embedding * case.tokens / tensor / case.peak_of_16_bits,
        "head_memory": memory / case.machine.gpu.memory_bytes_per_s,
    }


def _tensor(case: Case) -> dict[str, float]:
    """Sums of tensor parallelism in a layer, and what its ranks send for sequences and experts."""
    layout, passes = case.candidate.layout, case.passes
    sums = 2 * passes - 2 if layout.tensor > 1 else 0
    level, size = case.machine.levels(layout.tensor), case.tokens * case.model.width * case.value
    # With sequence parallelism each sum is a scatter and a gather, which no switch shortens.
    each = 2 * _ring(level, size) if layout.sequence_parallel else _sum(level, size)
    crossing = layout.pipeline > 1 and layout.tensor > 1 and case.crosses_nodes
    return {
        "layer_tensor": sums * each + _exchanged(case),
        "layer_messages": sums * _messages(level),
        "layer_crossing": passes * layout.tensor * crossing,
        "hides_sums": case.framework.hides_sums,
        "overlaps_sums": case.framework.overlaps_sums
        and not case.machine.gpu.name.startswith(AMPERE),
    }


def _visits(case: Case) -> dict[str, float]:
    """How many layers' passes follow each other until the longest or the last stage has ended."""
    layout, accum = case.candidate.layout, case.candidate.grad_accum
    layers, stages = case.model.layers, layout.pipeline
    longest, last = case.stage_layers
    # The first micro-batch passes through all layers; each further one ends a stage later.
    others = (stages - 1) * longest
    if stages == 1 or stages > layers or case.framework.balanced:
        others = layers - longest
    through = longest + others * layout.idle(case.passes)
    return {
        "visits": through + (accum - 1) * longest,
        "visits_last": through + (accum - 1) * last,
        "accum": accum,
    }


def _replicas(case: Case) -> dict[str, float]:
    """Gathers of FSDP, sums of gradients, and the optimizer of the longest stage."""
    model, layout, machine, passes = case.model, case.candidate.layout, case.machine, case.passes
    tensor, (longest, _) = layout.tensor, case.stage_layers
    routed = model.routed / layout.expert
    weights = (longest * (model.block() - model.routed + routed) + model.embedding) / tensor
    # Ranks that share experts neither sum nor gather those of the others.
    experts = longest * routed / tensor * case.value
    dense = weights * case.value - experts
    shards = machine.levels(layout.shards, stride=tensor)
    expert_copies = max(layout.shards // layout.expert, 1)
    expert_shards = machine.levels(expert_copies, stride=tensor * layout.expert)
    state = weights / layout.optimizer_shards * OPTIMIZER_BYTES
    terms = {
        "gathers": 0.0,
        "gather_messages": 0.0,
        # A pipeline keeps what it gathered for all its micro-batches.
        "gatherings": 1 if layout.pipeline > 1 else case.candidate.grad_accum,
        "optimizer": state / machine.gpu.memory_bytes_per_s,
        "nodes": further_nodes(layout, machine),
    }
    # DDP sums gradients during the last micro-batch's backward pass, as FSDP's replicas do those of
    # their shards; most ZeRO does so after it.
    backward = longest * (passes - 1) / passes
    if layout.sharing == "fsdp" and layout.shards > 1:
        part = case.value / (tensor * layout.pipeline)  # bytes of a parameter on each rank
        gathered = (model.parameters - model.layers * model.routed) * part
        gathered_experts = model.layers * routed * part
        replicas = machine.levels(layout.replicas, stride=tensor * layout.shards)
        return terms | {
            "gathers": 3 * (_ring(shards, gathered) + _ring(expert_shards, gathered_experts)),
            "gather_messages": 3 * longest * _messages(shards),
            "hiding": backward,
            "data": _sum(replicas, dense / layout.shards + experts / expert_copies),
            "data_messages": 2 * longest * _messages(replicas),
        }
    zero = layout.sharing in {"zero1", "zero2"}
    bucket = case.framework.shard_bytes if zero else BUCKET_BYTES
    hiding = backward if layout.sharing == "ddp" else 0.0
    if zero and case.framework.hides_shards:
        hiding = longest  # the next forward pass hides the gathers
    return terms | {
        "hiding": hiding,
        "data": _sum(shards, dense) + _sum(expert_shards, experts),
        "data_messages": 2 * math.ceil(weights * case.value / bucket) * _messages(shards),
    }


def _stages(case: Case) -> dict[str, float]:
    """What a pipeline's stages hand on."""
    layout, machine, framework = case.candidate.layout, case.machine, case.framework
    stages, times = layout.pipeline, case.candidate.grad_accum * layout.interleave
    steady = 0 if framework.hides_transfers and layout.interleave > 1 else times - 1
    hops = 2 * (steady + stages - 1) if stages > 1 else 0
    cards = machine.outer if case.crosses_nodes else machine.inner
    sent = case.handed_on
    if framework.scatters_stages and not layout.sequence_parallel:
        sent /= layout.tensor
    return {"stage": hops, "stage_bytes": hops * sent / cards.bytes_per_s}


def _delays(case: Case) -> dict[str, float]:
    """Transfers of stages and of DDP's sums that are delayed, and replicas that sums wait for."""
    layout, framework = case.candidate.layout, case.framework
    stages, times = layout.pipeline, case.candidate.grad_accum * layout.interleave
    # A stage between two others sends and receives twice per micro-batch, the first and last once.
    transfers = times * min(4, 2 * (stages - 1)) + stages - 1
    ddp = layout.sharing == "ddp" and layout.copies > 1
    nodes = math.ceil(layout.world_size / case.machine.gpus_per_node)
    far = nodes > framework.reach
    return {
        "stall": transfers * far,
        "may_stall": transfers * (far or nodes > framework.safe_reach),
        "stalled_sums": 4 * ddp * far,  # a ring's rank receives and sends to scatter, and to gather
        "replicas": layout.copies * (ddp and stages > 1 and framework.waits_for_replicas),
    }


def _ring(levels: Sequence[Level], size: float) -> float:
    """Seconds to gather or scatter `size` bytes within each level in turn."""
    return sum(replace(level, alpha_s=0.0).seconds("all_gather", size) for level in levels)


def _sum(levels: Sequence[Level], size: float) -> float:
    """Seconds to sum `size` bytes by rings, or by switches that can, within each level in turn."""
    return sum(replace(level, alpha_s=0.0).seconds("all_reduce", size) for level in levels)


def _messages(levels: Sequence[Level]) -> float:
    return sum(level.seconds("all_gather", 0.0) for level in levels)


def _exchanged(case: Case) -> float:
    """Seconds of a layer's keys and values round a context ring, and of tokens via experts."""
    layout, model, machine = case.candidate.layout, case.model, case.machine
    tokens, value, passes = case.tokens, case.value, case.passes
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
    summed = summed + c["replicas"] * q["replicas"]
    gradients = _larger(hiding, summed, _HIDES) - hiding + c["stall"] * q["stalled_sums"]
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
