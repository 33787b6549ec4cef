"""One row of a layout table: the values of its cells as a model, a layout and a machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lab.analysis.audit.columns import named_precision
from lab.analysis.layout_columns import FAILED, NO, RATES
from lab.analysis.layout_values import (
    AGREES,
    BATCHES,
    MOST_TOKENS,
    ROUNDED,
    degrees_of,
    flop_rate,
    gpus_of,
    has_groups,
    is_hybrid,
    is_rate_of_gpu,
    mfu_of,
    ranks_of_row,
    stated_flops,
    step_by_flops,
    step_by_rate,
    unknown,
    whole,
)
from lab.analysis.layout_words import SEQUENCE_PARALLEL, SIZED, sharing
from lab.errors import nearest
from lab.formatting import count
from lab.perfmodel import transformer
from lab.perfmodel.frameworks import Framework, unmasked
from lab.perfmodel.hardware import GPUS, LINKS, Machine, named_gpu
from lab.perfmodel.layout import Candidate, Checkpointing, Layout, Sharing
from lab.perfmodel.layout_terms import Case
from lab.perfmodel.transformer import Transformer

LEAST_PARAMETERS = 1e5  # of a model: smaller counts lack their unit
DENSE, MIXTURE = ("layers", "width"), ("layers", "width", "hidden", "experts", "active")
ONLY_SIZE = re.compile(r"\d+(\.\d+)?[bt]([ -]a\d+(\.\d+)?b)?", re.IGNORECASE)  # 30B-A3B
# What is recomputed, or MaxText's policies that keep the products.
PARTS_OF_LAYERS = re.compile(r"select|minimal|norm|attn|proj|(?<![a-z])act(?![a-z])")
UNSIZED = "no model and no model sizes"
UNTIMED = "no step time and no rate"
SHARING = {"sharding", "zero", "fsdp", "replicate", "shard"}
# What a row may lack, and what can be assumed instead.
LACKING = {
    "no number of GPUs": "gpus=8",
    "no GPUs per node": "per_node=8",
    UNSIZED: "model=llama3-8b",
    "no GPU": "gpu=h100",
    "no sequence length": "sequence=4096",
    "no batch size": "global_batch=256",
    "no micro-batch size for a pipeline": "micro_batch=1",
    UNTIMED: "",
}


@dataclass(frozen=True)
class LayoutRow:
    """A row that can be predicted: `step_s` is None if it did not run, `memory_bytes` its peak.

    `failed` means that the row was tried and crashed or ran out of memory. `quoted_` values are the
    table's own figures, next to the sizes and times used for counting.
    """

    place: int
    case: Case
    step_s: float | None
    memory_bytes: float | None = None
    failed: bool = False
    quoted_parameters: float | None = None
    quoted_mfu: float | None = None
    quoted_flops: float | None = None  # per second and GPU, beside a time or rate
    quoted_batch: float | None = None  # if it is not what ran
    rate_of_gpu: bool = False  # its rate is that of each GPU, though not named so
    divided: bool = False  # into micro-batches that the table does not give
    shares: bool = False  # all state among its replicas, as it ran and would not fit otherwise
    only_size: bool = False  # of a mixture of experts, of which one is known
    kind: str = ""  # of a model that is not a language decoder


def layout_row(
    place: int, values: Mapping[str, Any], notes: str, framework: Framework, *, timed: bool
) -> LayoutRow:
    """A row of a table; raises ValueError with what it lacks."""
    failed = bool(FAILED.search(str(values.get("status", ""))))
    kind = _kind(values)
    if kind and kind not in transformer.LIKE_DECODERS:
        framework = unmasked(framework)
    if lacks := _lacks(values, timed=timed and not failed):
        raise ValueError(", ".join(lacks))
    if values.get("adapters"):
        raise ValueError("LoRA trains adapters only, whereas all weights are assumed to be trained")
    gpus, data = ranks_of_row(values)
    sequence, model = values["sequence"], _model(values, notes)
    batch, micro, passes = _batch(values, gpus, data)
    if whole(values, "pipeline") > 1 and not (values.get("micro_batch") or values.get("accum")):
        raise ValueError("no micro-batch size for a pipeline")
    if sequence > MOST_TOKENS and not {"context", "tensor"} & values.keys():
        raise ValueError(
            f"a sequence of {sequence:,.0f} tokens, too long for one GPU: add a column for the "
            "ranks that share it (cp)"
        )
    machine = _machine(values, gpus)
    candidate = Candidate(
        _layout(values, data, model, machine, framework),
        round(micro),
        max(round(passes), 1),
        _recomputed(values, framework.keeps),
        named_precision(str(values.get("precision"))) or "bf16",
    )
    recomputed = None if "recomputed" in values else framework.recomputed
    undivided = Case(model, int(sequence), candidate, machine, recomputed, framework)
    divided = not any(map(values.get, ("micro_batch", "accum", "replica_batch")))
    case = _fitting(undivided) if divided else undivided
    if shares := timed and not failed and _shares(case, values, notes):
        layout = replace(candidate.layout, sharing="fsdp")
        undivided = replace(undivided, candidate=replace(candidate, layout=layout))
        case = _fitting(undivided) if divided else undivided
    step_s = None if failed else step_by_rate(values, gpus, batch, sequence)
    if step_s is None and timed and not failed:
        step_s = step_by_flops(values, case, gpus, batch)
    rate_of_gpu = step_s is not None and is_rate_of_gpu(values, case, gpus, batch, step_s)
    if step_s is not None and rate_of_gpu:
        step_s /= gpus
    flops = None if flop_rate(values) else stated_flops(values)
    quoted = values.get("global_batch")
    return LayoutRow(
        place,
        case,
        step_s,
        values.get("memory"),
        failed,
        quoted_parameters=_parameters(values) or transformer.size(_name(values)),
        quoted_mfu=mfu_of(values),
        quoted_flops=flops,
        quoted_batch=quoted if quoted != batch else None,
        rate_of_gpu=rate_of_gpu,
        divided=divided,
        shares=shares,
        only_size=model.experts > 1 and bool(ONLY_SIZE.fullmatch(_name(values))),
        kind=kind,
    )


def _layout(
    values: Mapping[str, Any], data: int, model: Transformer, machine: Machine, framework: Framework
) -> Layout:
    """How the ranks of a row share its model, with `data` replicas; ValueError if unknown."""
    tensor, pipeline, context = degrees_of(values)
    shared = _sharing(values, data * context, framework.sharing)
    near = machine.gpus_per_node // tensor
    # With experts, tensor parallelism must: each rank would send the same tokens otherwise.
    splits = framework.sequence_parallel or model.experts > 1
    interleave = min(whole(values, "interleave"), -(-model.layers // pipeline))
    return Layout(
        shared,
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        layers=model.layers,
        context=context,
        expert=_expert(values, model, data * context * tensor),
        interleave=interleave if pipeline > 1 else 1,
        sequence_parallel=_sequence_parallel(values, tensor, unsaid=splits),
        replicas=_replicas(values, data * context, near) if shared == "fsdp" else 1,
    )


def _expert(values: Mapping[str, Any], model: Transformer, ranks: int) -> int:
    """Expert parallelism among the ranks that can share experts; ValueError if unknown."""
    if unknown(values, "expert") and model.experts > 1 and ranks > 1:
        raise ValueError(
            "no expert parallelism for a mixture of experts, which other rows give: write 1 where "
            "each rank has all experts"
        )
    shared = whole(values, "expert")
    if model.experts > 1 and shared > ranks:
        raise ValueError(
            f"{count(shared, 'rank')} cannot share experts where only {ranks} have the same layers;"
            " correct ep or another degree"
        )
    return min(shared, ranks)


def _sequence_parallel(values: Mapping[str, Any], tensor: int, unsaid: bool) -> bool:
    """Whether tensor parallelism splits sequences, too; ValueError if other groups do."""
    stated = values.get("sequence_parallel")
    words = [str(values.get(name, "")) for name in ("sharding", "remarks")]
    for text in (*words, "" if stated is None else f"sp={stated}"):
        if match := SEQUENCE_PARALLEL.search(text):
            without, size = match.groups()
            if without or (size and not size.isdigit()):
                return False
            if size and int(size) not in {0, 1, tensor}:
                raise ValueError(
                    f"sequence parallelism over {size} ranks, but tensor parallelism over "
                    f"{tensor}: separate groups belong in a column cp"
                )
            return size is None or int(size) > 1
    return unsaid


def _lacks(values: Mapping[str, Any], *, timed: bool) -> list[str]:
    """What a row does not say, as in LACKING."""
    nodes = "no GPUs per node" if values.get("nodes") else "no number of GPUs"
    measured = (*map(values.get, ("time", *RATES)), flop_rate(values))
    needed = {
        nodes: gpus_of(values) or values.get("data"),
        UNSIZED: {*SIZED, "noted_model"} & values.keys(),
        "no GPU": values.get("gpu"),
        "no sequence length": values.get("sequence"),
        "no batch size": any(map(values.get, BATCHES)),
        UNTIMED: not timed or any(measured),
    }
    return [what for what, value in needed.items() if not value]


def _fitting(case: Case) -> Case:
    """The case with the largest micro-batch that fits, where only the batch of a step is known."""
    one = case.candidate
    for accum in range(1, one.micro_batch + 1):
        if one.micro_batch % accum == 0:
            candidate = replace(one, micro_batch=one.micro_batch // accum, grad_accum=accum)
            if (fitting := replace(case, candidate=candidate)).fits:
                return fitting
    return replace(case, candidate=replace(one, micro_batch=1, grad_accum=one.micro_batch))


def _shares(case: Case, values: Mapping[str, Any], notes: str) -> bool:
    """Whether replicas of a row that ran must have shared all of their state: the table leaves it
    open, nothing else makes them smaller, and they would not fit otherwise."""
    layout = case.candidate.layout
    stated = SHARING & values.keys() or re.search(r"\bddp\b", notes, re.IGNORECASE)
    alone = layout.tensor == layout.pipeline == 1 < layout.shards
    return not stated and alone and layout.sharing != "fsdp" and not case.fits


def _batch(values: Mapping[str, Any], gpus: float, data: int) -> tuple[float, float, float]:
    """Samples of a step and of a micro-batch, and micro-batches of a step; ValueError if unknown.

    What ran counts, not what is quoted; a micro-batch may include all accumulation.
    """
    batch, micro, accum = (values.get(name) for name in ("global_batch", "micro_batch", "accum"))
    if not batch and (tokens := values.get("batch_tokens")):
        batch = float(round(tokens / values["sequence"]))
    if not batch and (of_replica := values.get("replica_batch")):
        batch = of_replica * (accum or 1) * data
    ran = (micro or 0) * (accum or 1) * data
    if micro and (not batch or (accum and batch not in {ran, micro * data})):
        batch = batch if batch and _agrees(batch, values, gpus) else ran
    if not batch:
        raise ValueError(
            "the batch may be that of a step or of a micro-batch: name its column global_batch or "
            "micro_batch, or assume micro_batch if it is that of a step"
        )
    micro = micro or batch / data / (accum or 1)
    passes = batch / data / micro
    if micro < 0.999:
        raise ValueError("less than one sequence for each replica")
    if passes < 0.999:
        raise ValueError("the global batch is smaller than a micro-batch on each rank")
    if abs(round(passes) / passes - 1) > ROUNDED:
        raise ValueError(
            f"a global batch of {batch:g} is not a multiple of micro-batch x replicas = "
            f"{micro * data:g}; correct one of them"
        )
    return batch, micro, passes


def _agrees(batch: float, values: Mapping[str, Any], gpus: float) -> bool:
    """Whether a quoted batch is what the row's own time and rate make of it."""
    by_rate = step_by_rate({**values, "time": None}, gpus, batch, values["sequence"])
    time = values.get("time")
    return bool(time and by_rate and abs(by_rate / time - 1) < AGREES)


def _machine(values: Mapping[str, Any], gpus: float) -> Machine:
    """The GPUs of a row on their own link, and a usual one between nodes; ValueError if unknown."""
    gpu = named_gpu(str(values["gpu"]))
    if gpu is None:
        close = nearest(str(values["gpu"]), GPUS)
        advice = close if close.startswith("did") else "name one such as h100 or a100-40gb"
        raise ValueError(f"unknown GPU {values['gpu']}; {advice}")
    per_node, nodes = values.get("per_node"), values.get("nodes")
    inside = round(per_node or (gpus / nodes if nodes else gpu.joined))
    outer = "infiniband-hdr" if gpu.name.startswith(("a100", "v100", "a10")) else "infiniband-ndr"
    return Machine(gpu, max(inside, 1), LINKS[gpu.link], LINKS[outer])


def _name(values: Mapping[str, Any]) -> str:
    return " ".join(str(values[name]) for name in ("model", "size") if name in values)


def _kind(values: Mapping[str, Any]) -> str:
    """The kind of a row's model if it is not a language decoder, else "".

    Raises ValueError if neither the kind nor the model's size tells how much it computes.
    """
    noted = "" if values.get("model") else values.get("noted_kind", "")
    kind = transformer.other_kind(_name(values)) or noted
    if kind and kind not in transformer.LIKE_DECODERS and not all(map(values.get, DENSE)):
        raise ValueError(
            f"the model is {kind}, not a decoder of language, and its size does not tell its work: "
            "add columns for its layers, its width and the tokens of a sample (sequence length)"
        )
    return kind


def _model(values: Mapping[str, Any], notes: str) -> Transformer:
    """The model of a row, by its sizes, its name or its parameters; raises ValueError if unknown.

    Parameters alone say too little of a mixture of experts.
    """
    vocabulary = int(values.get("vocabulary") or transformer.GPT2_VOCABULARY)
    text = _name(values)
    mixture = transformer.has_experts(text)
    mixture = mixture or max(whole(values, "expert"), whole(values, "experts")) > 1
    lacks = [name for name in (MIXTURE if mixture else DENSE) if not values.get(name)]
    if not lacks:
        layers, width = int(values["layers"]), int(values["width"])
        heads = int(values.get("heads") or max(width // 64, 1))
        gated = bool(re.search("llama|swiglu", notes, re.IGNORECASE))
        hidden, groups = int(values.get("hidden") or 4 * width), int(values.get("groups") or 0)
        experts, active = whole(values, "experts"), whole(values, "active")
        return Transformer(
            layers, width, heads, hidden, vocabulary, groups, gated, experts=experts, active=active
        )
    model = transformer.named(text, notes) if text else values.get("noted_model")
    parameters = values.get("parameters")
    if model is None and parameters and parameters < LEAST_PARAMETERS:
        raise ValueError(
            f"a model of {parameters:g} parameters lacks the unit: write {parameters:g}B, or "
            "'parameters (B)' above it"
        )
    if mixture and model is None and ONLY_SIZE.fullmatch(text):
        model = transformer.mixture_of(transformer.size(text) or 0.0)
    if mixture and not text and model and model.experts == 1:
        model = transformer.mixture_of(model.parameters)  # notes gave a size, such as "Qwen 235B"
    if mixture and (model is None or model.experts == 1):
        raise ValueError(f"unknown mixture of experts {text or '(ep > 1)'}: no {', '.join(lacks)}")
    if model is None and (parameters := parameters or transformer.size(text)):
        model = transformer.of_parameters(parameters, vocabulary=vocabulary)
    if model is None:
        sizes = "its parameters (7B), or layers and width"
        if not text and values.get("layers"):
            raise ValueError("layers, but no width: add a column for the hidden size")
        raise ValueError(f"unknown model {text}; give {sizes}" if text else UNSIZED)
    if values.get("layers"):  # of a model that was cut to fit on fewer GPUs
        return replace(model, layers=int(values["layers"]))
    return model


def _parameters(values: Mapping[str, Any]) -> float | None:
    """The quoted parameters, if their unit is known."""
    quoted = values.get("parameters") or 0.0
    return quoted if quoted >= LEAST_PARAMETERS else None


def _sharing(values: Mapping[str, Any], copies: int, unsaid: Sharing) -> Sharing:
    if copies == 1:
        return "single"
    if (values.get("fsdp") or 0) > 1:
        return "fsdp"
    if has_groups(values):
        unsaid = "fsdp" if _shards(values, copies) > 1 else "ddp"
    words = " ".join(str(values.get(name, "")) for name in ("sharding", "zero"))
    return sharing(words) or unsaid


def _shards(values: Mapping[str, Any], copies: int) -> float:
    """Among how many ranks FSDP shards: also those that share sequences."""
    if shard := values.get("shard"):
        return float(shard * whole(values, "context"))
    return copies / whole(values, "replicate")


def _replicas(values: Mapping[str, Any], copies: int, near: int) -> int:
    """Groups among which FSDP only sums gradients (HSDP): as stated, else the nodes.

    Each node has `near` of the copies. Raises ValueError if groups and copies do not agree.
    """
    if has_groups(values):
        shards = _shards(values, copies)
    else:
        shards = near if is_hybrid(values) and near > 1 and not copies % near else copies
    if copies % shards:
        raise ValueError(
            f"{copies} data-parallel ranks cannot be sharded in groups of {shards:.4g}"
        )
    return round(copies / shards)


def _recomputed(values: Mapping[str, Any], unsaid: Checkpointing) -> Checkpointing:
    if "recomputed" not in values:
        return unsaid
    text = str(values["recomputed"]).lower()
    if PARTS_OF_LAYERS.search(text):
        return "selective"
    return "none" if NO.fullmatch(text) else "full"
