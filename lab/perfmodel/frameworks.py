"""Frameworks that people train with, as far as they change a layout's step time and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lab.config.run import DEFAULT_BUCKET_CAP_MB
from lab.formatting import MIB
from lab.perfmodel.layout import Checkpointing, Sharing
from lab.perfmodel.memory import ACCUMULATED, BF16, FP32, MIXED, USABLE, StateBytes


@dataclass(frozen=True)
class Framework:
    """How a framework splits its pipelines, and how it differs from the general expectation.

    `pattern` matches the words by which a table names it. Stages of a `balanced` pipeline have
    equal FLOPs, including the head's; others equal layers. `sequence_parallel` says that its tensor
    parallelism splits sequences as well, `counts_recomputed` whether its FLOP/s include recomputed
    passes (None: unknown), `halves_attention` that they omit its masked half, `skips_masked` that
    the `attention` expected below is that of kernels that skip it. `sharing` is how its replicas
    share state if a table does not say, and `hides_shards` that ZeRO's gradients are sent during
    the last backward pass, as DDP's are, and its parameters during the next forward pass.
    `scatters_stages` says that tensor parallel ranks share what stages hand on, `hides_transfers`
    that an interleaved pipeline hands on while it computes. Launches and products hide each other
    as a p-norm with exponent `hides`: the higher it is, the more the longer one alone counts.
    `hides_sums` says that launches hide the sums of tensor parallelism as well, `overlaps_sums`
    that they are cut up and sent while products are computed, `dispatches_once` that a token for
    several experts of another node is sent there once (DeepEP). On more nodes than its `reach`, the
    transfers of a pipeline and those of DDP are delayed, on more than its `safe_reach` those of
    some pipelines, and in a pipeline DDP's sums may wait for each of the replicas
    (`waits_for_replicas`). If a table does not say, `recomputed` is the share of the forward pass
    that is taken to be recomputed, `keeps` the checkpointing by which memory is counted,
    `interleave` the stages of a rank. `shard_bytes` are what ZeRO sums and gathers at a time.
    `state`, `sharded_state` and `fused` are those of `Case.memory`, `usable` is the share of
    a GPU's nominal memory for training, `offloads` that of the layers whose activations FSDP moves
    to a Grace host. `wide` is the time of a dense model's products in 16 bits on Hopper, over that
    of others at as much of their peak. `coefficients` are those of the law of layouts with
    different expectations, with the deviation of their logarithm.
    """

    name: str = ""
    pattern: str = ""
    balanced: bool = False
    sequence_parallel: bool = False
    counts_recomputed: bool | None = None
    halves_attention: bool = False
    skips_masked: bool = False
    sharing: Sharing = "ddp"
    hides_shards: bool = False
    hides_transfers: bool = False
    scatters_stages: bool = False
    hides: float = 2.0
    hides_sums: bool = False
    overlaps_sums: bool = False
    dispatches_once: bool = False
    recomputed: float = 0.5  # half a pass is the smaller error either way
    keeps: Checkpointing = "selective"  # half of the activations, to agree with it
    shard_bytes: float = 1e9  # DeepSpeed's reduce_bucket_size, 5e8 values of 2 bytes
    reach: float = math.inf
    safe_reach: float = math.inf
    waits_for_replicas: bool = False
    interleave: int = 1
    state: StateBytes = ACCUMULATED
    sharded_state: StateBytes = FP32
    fused: bool = False
    usable: float = USABLE
    offloads: float = 0.0
    wide: float = 1.0
    coefficients: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


BUCKET_BYTES = DEFAULT_BUCKET_CAP_MB * MIB  # of gradients that are sent together
ANY = Framework()
# nanotron: a fit to the 336 layouts of one model on H100s that `lab bench public` finds undisturbed
# (Ultra-Scale Playbook 2025; tp <= 8). It recomputes nothing unless told to (recompute_layer =
# False). Launching a pass of a layer takes at least 1.4 ms, which a long enough layer hides
# completely; tensor-parallel sums hide behind launches, and the ranks of a pipeline across nodes
# wait for each other. `stall` is the median of 45 pipelines that took over twice as long as that
# fit: each transfer of their middle stages 0.27 s instead of 0.2 ms, in 18 of 19 pipelines on 64
# nodes, 14 of 39 on 32, 8 of 50 on 16, 4 of 55 on 8 and none of 75 on 2 and 4; the three runs of
# DDP without a pipeline on 64 nodes took about four such delays longer. `replicas` is a fit to the
# 11 pipelines with DDP on up to 16 nodes: they take longer than their twins with ZeRO-1, those on
# more replicas the more, unless a long last backward pass hides it.
NANOTRON = Framework(
    name="nanotron",
    pattern=r"\bnanotron\b",
    balanced=True,
    sequence_parallel=True,
    hides=8.0,
    hides_sums=True,
    recomputed=0.0,
    keeps="none",
    shard_bytes=BUCKET_BYTES,
    reach=32,
    safe_reach=4,
    waits_for_replicas=True,
    coefficients={
        "flops": (1.74, 0.15),
        "launch": (1.4e-3, 0.3),
        "memory": (6.65, 0.3),
        "head": (0.85, 0.3),
        "tensor_bytes": (0.94, 0.5),
        "tensor_messages": (1.0, 0.5),
        "data": (2.8, 0.5),
        "data_messages": (1.5, 0.5),
        "crossing": (7e-4, 0.5),
        "nodes": (1.3e-3, 0.7),
        "stall": (0.27, 0.2),
        "replicas": (5e-3, 0.5),
    },
)
# Megatron-DeepSpeed up to 2024, measured by vTrain: attention is not fused, so that its scores are
# written and read several times.
MEGATRON = Framework(
    name="megatron",
    pattern=r"megatron.?deepspeed|vtrain",
    counts_recomputed=True,
    coefficients={"scores": (5.9, 0.5)},
)
# Nor is it in Megatron-LM up to 2022, before FlashAttention. Its tensor parallel ranks each hand a
# part of a micro-batch on, by their own card (Narayanan et al. 2021, section 4.1).
MEGATRON_LM = replace(
    MEGATRON,
    name="megatron-lm",
    pattern=r"\A(?=.*\bmegatron.?lm\b).*\b20(19|2[0-2])\b",
    scatters_stages=True,
)
# Megatron-Core's names for tensor and data parallelism of experts, for interleaved stages, and for
# what sends tokens to experts; columns are named so, too.
DISPATCHER = r"token_?dispatcher"
OF_MEGATRON_CORE = rf"\b(?:etp|edp|vpp?)(?=\d|\b)|{DISPATCHER}"
# Megatron-Core since 2023, as its README benchmarks it: a distributed optimizer whose gradients and
# parameters are sent in large buffers while it computes (overlap_grad_reduce,
# overlap_param_gather), split sequences, activations sent while products run (tp_comm_overlap),
# tokens by DeepEP, gates and loss fused, nothing recomputed unless stated. cuDNN's attention skips
# the masked half and reaches half of the peak or more; the buffers are sent as FSDP's gathers are.
MEGATRON_CORE = Framework(
    name="megatron-core",
    pattern=r"megatron.?core|(?<![a-z])mcore(?![a-z])|(?:\bprimus\b|turbo_deepep)(?!.*torchtitan)"
    rf"|{DISPATCHER}|\A(?=.*(megatron|{OF_MEGATRON_CORE}))"
    r"(?=.*(\b202[3-9]\b|fp[48]|(?<![a-z])(h[128]00|gh200|g?b[23]00|mi3\d\dx)))",
    sequence_parallel=True,
    counts_recomputed=False,
    sharing="zero1",
    hides_shards=True,
    hides_transfers=True,
    overlaps_sums=True,
    dispatches_once=True,
    recomputed=0.0,
    keeps="none",
    interleave=2,  # half of the bubble is the smaller error either way
    fused=True,
    skips_masked=True,
    usable=1.03,  # all but 4 % of the card's GiB, which expandable segments do not fragment
    coefficients={"attention": (0.5, 0.4), "data": (1.2, 0.6)},
)
# NeMo and Megatron-Bridge on the same core: their tables give tokens/s and FLOP/s, which differ by
# this half. Their recipes for benchmarks sum gradients in bf16 (grad_reduce_in_fp32=False). On H100
# their products reach 0.62 of the peak in bf16 and half of it in fp8, by Llama 3.1 8B, 70B and
# 405B, GPT-3 175B and Nemotron 4 15B on 8 to 2304 GPUs (NVIDIA/dgxc-benchmarking, 2024).
NEMO = replace(
    MEGATRON_CORE,
    name="nemo",
    pattern=r"\bnemo\b|megatron.?bridge",
    halves_attention=True,
    state=MIXED,
    offloads=0.5,  # cpu_offloading_num_layers of its recipes for FSDP: 20 to 40 of 80
    wide=0.8,
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
    wide=1.0,
)
# torchtitan's tensor parallelism splits sequences: its Llama plans use SequenceParallel (2024). It
# shards over all replicas by default (data_parallel_shard_degree = -1).
TORCHTITAN = Framework(
    name="torchtitan", pattern=r"torch.?titan", sequence_parallel=True, sharing="fsdp"
)
FRAMEWORKS = (NANOTRON, MEGATRON, MEGATRON_LM, AUTOMODEL, NEMO, MEGATRON_CORE, TORCHTITAN)
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
    """The framework named in some words, or the general one if none is recognized.

    What patterns seek anywhere is sought from the start (\\A) only: a page has 10^5 places.
    """
    named = (one for one in FRAMEWORKS if re.search(one.pattern, text, re.IGNORECASE | re.DOTALL))
    return next(named, ANY)


def unmasked(framework: Framework) -> Framework:
    """The framework, for models in which each token sees all others: a mask halves nothing."""
    expected, spread = framework.coefficients.get("attention", (0.0, 0.0))
    twice = {"attention": (2 * expected, spread)} if framework.skips_masked else {}
    return replace(
        framework, halves_attention=False, coefficients={**framework.coefficients, **twice}
    )
