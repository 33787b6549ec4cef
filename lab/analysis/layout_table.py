"""Layout tables from any source: the model, the layout, the machine and the step time.

Gaps in a table are filled from its notes, and every assumption is listed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.analysis.audit.text_table import read_table
from lab.analysis.audit.values import COUNT_UNITS, number
from lab.analysis.layout_columns import (
    ALL_GPUS,
    ASSUMED,
    FAILED,
    FLOPS,
    NO,
    RATES,
    TEXT,
    UNITS,
    column_values,
    crashed,
    meanings,
    stage,
)
from lab.errors import InputError, Problem, nearest
from lab.formatting import count
from lab.perfmodel import layout_law, transformer
from lab.perfmodel.hardware import LINKS, Machine, named_gpu
from lab.perfmodel.layout import Candidate, Checkpointing, Layout, Sharing
from lab.perfmodel.layout_law import Case, LayoutLaw, named_framework
from lab.perfmodel.transformer import Transformer

if TYPE_CHECKING:
    import pandas as pd

NOTED = {
    "sequence": r"sequences?(?: length| of)?[ =:]*(\d{3,7})",
    "global_batch": r"global batch(?: size| of)?[ =:]*(\d+)",
    "per_node": r"x ?(\d+) per node|(\d+) GPUs per node",
}
# The first matching words count.
SHARINGS: dict[Sharing, str] = {
    "fsdp": r"full_?shard|fsdp|hsdp|hybrid_?shard|zero\W?3",
    "zero2": r"shard_?grad|zero\W?2",
    "zero1": r"zero\W?1",
}
PRECISIONS = {
    "fp32": "fp32|float32",
    "tf32": "tf32",
    "fp16": "fp16|half|amp",
    "fp8": "fp8|float8",
    "fp4": "fp4",
}
# Notes name fp32 for other things, too, such as master weights.
NOTED_PRECISION = re.compile(
    r"\b((?:mx|nv)?fp-?[48]|[fb]p?f?-?16|[ft][pf]-?32(?= precision))\b", re.IGNORECASE
)
# "TP8+SP", "sp=8", "without sequence parallelism"; a number is the size of its groups.
SEQUENCE_PARALLEL = re.compile(
    r"(\b(?:no|not|without|w/o)\s+)?(?:\bsequence.?parallel(?:ism)?|(?<![a-z])sp)(?![a-z])"
    r"(?:\s*[=:]\s*)?(\d+|off|false|no(?:ne)?\b)?",
    re.IGNORECASE,
)
# Notes also explain abbreviations.
NOTED_SEQUENCE_PARALLEL = re.compile(
    r"\b(?:with|using|uses?|without)\s+sequence.parallel(?:ism)?", re.IGNORECASE
)
LEAST_PARAMETERS = 1e5  # of a model: smaller counts lack their unit
DENSE, MIXTURE = ("layers", "width"), ("layers", "width", "hidden", "experts", "active")
ADVICE = (
    "needed: GPUs, model or its sizes, sequence length, batch, and a step time or a rate; what the "
    "table lacks can be assumed (--assume NAME=VALUE)"
)


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
    quoted_batch: float | None = None  # if it is not what ran


@dataclass(frozen=True)
class LayoutTable:
    """Rows of a table that can be predicted, how its columns were read, and why others were not."""

    rows: tuple[LayoutRow, ...]
    columns: dict[str, str]
    assumptions: tuple[str, ...]
    left_out: dict[str, int] = field(default_factory=dict)
    name: str = "rows"

    @property
    def measured(self) -> list[LayoutRow]:
        """Rows with a time."""
        return [row for row in self.rows if row.step_s is not None]

    @property
    def cases(self) -> list[Case]:
        """The cases of the measured rows."""
        return [row.case for row in self.measured]

    @property
    def step_s(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The step times of the measured rows, in s."""
        return np.array([row.step_s for row in self.measured], dtype=float)

    @property
    def notes(self) -> list[str]:
        """The assumptions, which rows did not run, and why others were left out, as sentences."""
        failed = sum(row.failed for row in self.rows)
        notes = [*self.assumptions]
        notes += [f"{count(failed, 'row')} crashed or ran out of memory"] if failed else []
        return notes + [f"{count(n, 'row')} left out: {why}" for why, n in self.left_out.items()]


def read_layouts(
    source: str | Path | pd.DataFrame,
    *,
    assume: Mapping[str, Any] | None = None,
    timed: bool = True,
) -> LayoutTable:
    """Read a file or DataFrame of layouts; `assume` fills in what is missing, such as gpu="a100".

    Rows without a time or rate are left out, unless `timed` is false. Raises InputError, with what
    is missing, if no row can be predicted, and for unknown names in `assume`.
    """
    frame = read_table(source) if isinstance(source, str | Path) else source
    name = str(frame.attrs.get("name", "rows"))
    notes = " ".join([*map(str, frame.attrs.get("notes", ())), name.replace("_", " ")])
    columns = meanings(frame)
    defaults, assumptions = _defaults(columns, notes, _assumed(assume or {}))
    every = [defaults | cells for cells in _cells(frame, columns, defaults)]
    if "batch" in columns and (meant := _meaning_of_batch(every)):
        every = [{meant: values.get("batch")} | values for values in every]
        what = "a whole step" if meant == "global_batch" else "one micro-batch"
        assumptions.append(f"{columns['batch']!r} is that of {what}, by the other columns")
    if any(re.search("hsdp|hybrid", str(values.get("sharding", "")).lower()) for values in every):
        assumptions.append("HSDP is counted as FSDP over all replicas")
    if any(map(_flop_rate, every)):
        attention = "half of attention" if named_framework(notes).halves_attention else "attention"
        assumptions.append(
            f"step times follow from FLOP/s: 6 FLOPs per token and parameter, plus {attention}"
        )
    rows: list[LayoutRow] = []
    left_out: Counter[str] = Counter()
    for place, values in enumerate(every):
        try:
            rows.append(_row(place, values, notes, timed=timed))
        except ValueError as error:
            left_out[str(error)] += 1
    if not rows:
        problems = [Problem(count(n, "row"), reason, ADVICE) for reason, n in left_out.items()]
        raise InputError(name, problems or [Problem("table", "has no rows", ADVICE)])
    unstated = not any("expert" in values for values in every)
    if unstated and any(row.case.model.experts > 1 for row in rows):
        assumptions.append("the table gives no expert parallelism: each rank has all experts")
    if others := sum(row.quoted_batch is not None for row in rows):
        assumptions.append(
            f"{count(others, 'row')} quote{'s' * (others == 1)} a batch other than micro-batch x "
            "accumulation x replicas; this product is used"
        )
    return LayoutTable(tuple(rows), columns, tuple(assumptions), dict(left_out), name)


def _assumed(assume: Mapping[str, Any]) -> dict[str, Any]:
    """The assumptions as values of cells; raises InputError for unknown names and no numbers."""
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, value in assume.items():
        if name not in ASSUMED:
            problems.append(Problem(name, "unknown name", nearest(name, ASSUMED)))
        elif name in TEXT:
            values[name] = stage("", str(value).lower()) if name == "zero" else str(value)
        elif not math.isfinite(read := number(value, units=UNITS.get(name, COUNT_UNITS))):
            problems.append(Problem(name, f"{value!r} is not a number", "give one, such as 8"))
        else:
            values[name] = read
    if problems:
        raise InputError("assume", problems)
    return values


def _cells(
    frame: pd.DataFrame, columns: Mapping[str, str], defaults: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What the cells of each row say; a row that crashed says so as its status."""
    rows: list[dict[str, Any]] = [{} for _ in range(len(frame))]
    for meant, column in columns.items():
        cells = frame[column].tolist()
        for row, cell, value in zip(rows, cells, column_values(meant, column, cells), strict=True):
            unknown = value is None or (value != value and meant in defaults)
            if not unknown:
                row[meant] = value
            if crashed(meant, cell):
                row["status"] = str(cell)
    return rows


def _defaults(
    columns: Mapping[str, str], notes: str, assume: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    assumptions = []
    for meant, pattern in NOTED.items():
        if meant not in columns and (match := re.search(pattern, notes, re.IGNORECASE)):
            values[meant] = float(match[1] or match[2])
            assumptions.append(f"{meant.replace('_', ' ')} {values[meant]:g}, from the notes")
    if "precision" not in {*columns, *assume}:
        named = {_precision(words) for words in NOTED_PRECISION.findall(notes)}
        if len(named) == 1:
            values["precision"] = named.pop()
            assumptions.append(f"{values['precision']}, from the notes")
        else:
            assumptions.append("the table does not say which precision: bf16 is assumed")
    gpu = named_gpu(notes)
    if "gpu" not in columns and "gpu" not in assume:
        values["gpu"] = gpu.name if gpu else "a100"
        by = "from the notes" if gpu else "because the table names no GPU"
        assumptions.append(f"{values['gpu'].upper()} GPUs, {by}")
    if "sequence_parallel" not in {*columns, *assume}:
        said = {match.lower() for match in NOTED_SEQUENCE_PARALLEL.findall(notes)}
        if len({words.startswith("without") for words in said}) == 1:
            values["sequence_parallel"] = "off" if said.pop().startswith("without") else "on"
            assumptions.append(
                f"sequence parallelism {values['sequence_parallel']}, from the notes"
            )
    if "recomputed" not in columns and "recomputed" not in assume:
        full = r"full (activation )?(recomputation|recompute|checkpoint)"
        timed = {"time", *RATES} & columns.keys()
        unlabelled = {"flops", ALL_GPUS + "flops"} & columns.keys()
        if re.search(full, notes, re.IGNORECASE):
            values["recomputed"] = "full"
        elif named_framework(notes).counts_recomputed and unlabelled and not timed:
            values["recomputed"] = "full"
            assumptions.append("full recomputation, which this framework's formula of FLOPs counts")
        else:
            assumptions.append(
                "the table does not say whether activations are recomputed: half are assumed"
            )
    return values | assume, assumptions


def _meaning_of_batch(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What a plain batch size means: `global_batch` or `micro_batch`; None if both are possible."""
    if any("micro_batch" in values for values in rows):
        return "global_batch"
    if any("global_batch" in values for values in rows):
        return "micro_batch"
    shares = set()
    for values in rows:
        with suppress(ValueError):
            share = _ranks(values)[1] * (values.get("accum") or 1)
            shares.add(share)
            if (values.get("batch") or 0) % share:
                return "micro_batch"  # a step's batch is a multiple
    return "global_batch" if shares == {1} else None  # a step is one micro-batch


def _ranks(values: Mapping[str, Any]) -> tuple[float, int]:
    """All GPUs of a row and its replicas; raises ValueError if they contradict each other."""
    split = math.prod(_degrees(values))
    gpus = _gpus(values)
    data = _whole(values, "data", (gpus or split) / split)
    gpus = gpus or data * split
    if gpus % split or data * split > gpus:
        raise ValueError(f"{gpus:g} GPUs are not a multiple of tp x pp x cp")
    return gpus, round(gpus / split)


def _gpus(values: Mapping[str, Any]) -> float:
    """The stated GPUs, else 0."""
    nodes = (values.get("nodes") or 0.0) * (values.get("per_node") or 0.0)
    return float(values.get("gpus") or nodes)


def _degrees(values: Mapping[str, Any]) -> tuple[int, int, int]:
    """Tensor, pipeline and context parallelism; ValueError if one is unknown."""
    names = ("tensor", "pipeline", "context")
    known = math.prod(_whole(values, name) for name in (*names, "data"))
    for name in names:
        # No GPUs may be left for it.
        if _unknown(values, name) and _gpus(values) != known:
            raise ValueError(
                f"no {name} parallelism, which other rows give: write 1 where it is not used"
            )
    tensor, pipeline, context = (_whole(values, name) for name in names)
    return tensor, pipeline, context


def _unknown(values: Mapping[str, Any], name: str) -> bool:
    return math.isnan(values.get(name, 1))


def _whole(values: Mapping[str, Any], name: str, default: float = 1) -> int:
    value = default if _unknown(values, name) else values.get(name) or default
    return max(round(float(value)), 1)


def _expert(values: Mapping[str, Any], model: Transformer, ranks: int) -> int:
    """Expert parallelism among the ranks that can share experts; ValueError if unknown."""
    if _unknown(values, "expert") and model.experts > 1 and ranks > 1:
        raise ValueError(
            "no expert parallelism for a mixture of experts, which other rows give: write 1 where "
            "each rank has all experts"
        )
    return min(_whole(values, "expert"), ranks)


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
                    f"{tensor}: groups of its own belong into a column cp"
                )
            return size is None or int(size) > 1
    return unsaid


def _row(place: int, values: Mapping[str, Any], notes: str, *, timed: bool) -> LayoutRow:
    """A row of a table; raises ValueError with what it lacks."""
    gpus, data = _ranks(values)
    tensor, pipeline, context = _degrees(values)
    sequence = values.get("sequence")
    if not sequence:
        raise ValueError("no sequence length")
    model, framework = _model(values, notes), named_framework(notes)
    batch, micro, passes = _batch(values, data)
    machine = _machine(values, gpus)
    layout = Layout(
        _sharing(values, data),
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        layers=model.layers,
        context=context,
        expert=_expert(values, model, data * context * tensor),
        interleave=min(_whole(values, "interleave"), max(model.layers // pipeline, 1)),
        sequence_parallel=_sequence_parallel(values, tensor, framework.sequence_parallel),
    )
    candidate = Candidate(
        layout,
        round(micro),
        max(round(passes), 1),
        _recomputed(values),
        _precision(str(values.get("precision", "bf16"))),
    )
    # If nothing is stated, half a pass is the smaller error either way.
    recomputed = None if "recomputed" in values else 0.5
    case = Case(model, int(sequence), candidate, machine, recomputed, framework)
    failed = bool(FAILED.search(str(values.get("status", ""))))
    step_s = None if failed else _step(values, gpus, batch, sequence)
    if step_s is None and timed and not failed:
        step_s = _step_by_flops(values, case, gpus, batch)
    memory = values.get("memory")
    parameters = _parameters(values) or transformer.size(_name(values))
    mfu = values.get("mfu")
    mfu = mfu / 100 if mfu and mfu > 1.5 else mfu  # per cent, though not labelled so
    quoted = values.get("global_batch")
    other = quoted if quoted != batch else None
    return LayoutRow(place, case, step_s, memory, failed, parameters, mfu, other)


def _batch(values: Mapping[str, Any], data: int) -> tuple[float, float, float]:
    """Samples of a step and of a micro-batch, and micro-batches of a step; ValueError if unknown.

    What ran counts, not what is quoted; a micro-batch may include all accumulation.
    """
    batch, micro, accum = (values.get(name) for name in ("global_batch", "micro_batch", "accum"))
    ran = (micro or 0) * (accum or 1) * data
    if micro and (not batch or (accum and batch not in {ran, micro * data})):
        batch = ran
    if not batch:
        raise ValueError(
            "the batch may be that of a step or of a micro-batch: name its column global_batch or "
            "micro_batch"
            if "batch" in values
            else "no batch size"
        )
    micro = micro or batch / data / (accum or 1)
    passes = batch / data / micro
    if passes < 0.999:
        raise ValueError("the global batch is smaller than a micro-batch on each rank")
    return batch, micro, passes


def _machine(values: Mapping[str, Any], gpus: float) -> Machine:
    """The GPUs of a row on their own link, and a usual one between nodes; ValueError if unknown."""
    gpu = named_gpu(str(values["gpu"]))
    if gpu is None:
        raise ValueError(f"unknown GPU {values['gpu']}")
    per_node, nodes = values.get("per_node"), values.get("nodes")
    inside = round(per_node or (gpus / nodes if nodes else gpu.joined))
    outer = "infiniband-hdr" if gpu.name.startswith(("a100", "v100", "a10")) else "infiniband-ndr"
    return Machine(gpu, max(inside, 1), LINKS[gpu.link], LINKS[outer])


def _name(values: Mapping[str, Any]) -> str:
    return " ".join(str(values[name]) for name in ("model", "size") if name in values)


def _model(values: Mapping[str, Any], notes: str) -> Transformer:
    """The model of a row, by its sizes, its name or its parameters; raises ValueError if unknown.

    Parameters alone say too little of a mixture of experts.
    """
    vocabulary = int(values.get("vocabulary") or transformer.GPT2_VOCABULARY)
    text = _name(values)
    mixture = transformer.has_experts(text)
    mixture = mixture or max(_whole(values, "expert"), _whole(values, "experts")) > 1
    lacks = [name for name in (MIXTURE if mixture else DENSE) if not values.get(name)]
    if not lacks:
        layers, width = int(values["layers"]), int(values["width"])
        heads = int(values.get("heads") or max(width // 64, 1))
        gated = bool(re.search("llama|swiglu", notes, re.IGNORECASE))
        hidden, groups = int(values.get("hidden") or 4 * width), int(values.get("groups") or 0)
        experts, active = _whole(values, "experts"), _whole(values, "active")
        return Transformer(
            layers, width, heads, hidden, vocabulary, groups, gated, experts=experts, active=active
        )
    model = transformer.named(text, notes)
    parameters = values.get("parameters")
    if model is None and parameters and parameters < LEAST_PARAMETERS:
        raise ValueError(
            f"a model of {parameters:g} parameters lacks the unit: write {parameters:g}B, or "
            "'parameters (B)' above it"
        )
    if mixture and (model is None or model.experts == 1):
        raise ValueError(f"unknown mixture of experts {text or '(ep > 1)'}: no {', '.join(lacks)}")
    if model is None and (parameters := parameters or transformer.size(text)):
        model = transformer.of_parameters(parameters, vocabulary=vocabulary)
    if model is None:
        raise ValueError(f"unknown model {text}" if text else "no model and no model sizes")
    return model


def _parameters(values: Mapping[str, Any]) -> float | None:
    """The quoted parameters, if their unit is known."""
    quoted = values.get("parameters") or 0.0
    return quoted if quoted >= LEAST_PARAMETERS else None


def _sharing(values: Mapping[str, Any], data: int) -> Sharing:
    words = " ".join(str(values.get(name, "")) for name in ("sharding", "zero")).lower()
    if data == 1:
        return "single"
    if (values.get("fsdp") or 0) > 1:
        return "fsdp"
    return next((name for name, used in SHARINGS.items() if re.search(used, words)), "ddp")


def _recomputed(values: Mapping[str, Any]) -> Checkpointing:
    text = str(values.get("recomputed", "")).lower()
    if "select" in text:
        return "selective"
    return "none" if NO.fullmatch(text) else "full"


def _precision(words: str) -> str:
    text = re.sub("[^a-z0-9]", "", words.lower())
    return next((name for name, used in PRECISIONS.items() if re.search(used, text)), "bf16")


def _step(values: Mapping[str, Any], gpus: float, batch: float, sequence: float) -> float | None:
    work = {
        "tokens_per_gpu": batch * sequence / gpus,
        "tokens": batch * sequence,
        "samples_per_gpu": batch / gpus,
        "samples": batch,
    }
    if time := values.get("time"):
        return float(time)
    return next((work[name] / values[name] for name in RATES if values.get(name)), None)


def _flop_rate(values: Mapping[str, Any]) -> str | None:
    """The kind of FLOP/s by which to time a row that has neither a time nor another rate."""
    if any(values.get(name) for name in ("time", *RATES)):
        return None
    kinds = (prefix + name for prefix in ("", ALL_GPUS) for name in FLOPS)
    return next((kind for kind in kinds if values.get(kind)), None)


def _step_by_flops(values: Mapping[str, Any], case: Case, gpus: float, batch: float) -> float:
    """The step time for which a row's FLOP/s are those of its work; ValueError if unknown.

    FLOP/s of the model count three forward passes, those of the hardware recomputed ones as well.
    """
    kind = _flop_rate(values)
    if kind is None:
        raise ValueError("no step time and no rate")
    rate = values[kind] / (gpus if kind.startswith(ALL_GPUS) else 1)
    gpu, precision = case.machine.gpu, case.candidate.precision
    if rate > gpu.fastest(precision):
        raise ValueError(
            f"more FLOP/s than the {gpu.fastest(precision) / 1e12:g} TFLOP/s of an "
            f"{gpu.name.upper()}: name those of all GPUs 'aggregate TFLOP/s'"
        )
    passes = case.passes
    if kind.endswith("model_flops"):
        passes = 3.0
    elif "recomputed" not in values:
        raise ValueError(
            "FLOP/s that may count recomputed passes, without saying whether there are any: assume "
            "recomputed, or name them 'model TFLOP/s'"
        )
    elif passes > 3 and not (kind.endswith("hardware_flops") or case.framework.counts_recomputed):
        raise ValueError(
            "FLOP/s that may or may not count recomputed passes: name them 'model TFLOP/s' or "
            "'hardware TFLOP/s'"
        )
    work = case.model.flops_per_token(
        case.sequence, passes=passes, masked=case.framework.halves_attention
    )
    return float(work * batch * case.sequence / gpus / rate)


@dataclass(frozen=True)
class FittedLayouts:
    """A law that was fitted to rows of one table and predicts rows of similar tables."""

    law: LayoutLaw
    table: LayoutTable
    assume: Mapping[str, Any]

    def predict(self, rows: str | Path | pd.DataFrame) -> pd.DataFrame:
        """Step time in s with its 95 % interval for each row that can be predicted.

        The index is the row's position. Columns: `step_s`, `low_s`, `high_s`, and the parts in s.
        Measured times of these rows are not used. Raises InputError.
        """
        import pandas as pd

        table = read_layouts(rows, assume=self.assume, timed=False)
        cases = [row.case for row in table.rows]
        low, high = self.law.intervals(cases)
        parts = layout_law.parts(layout_law.quantities(cases), self.law.coefficients)
        content = {"step_s": self.law.predict(cases), "low_s": low, "high_s": high} | parts
        return pd.DataFrame(content, index=[row.place for row in table.rows])


def fit_layouts(
    rows: str | Path | pd.DataFrame, *, assume: Mapping[str, Any] | None = None
) -> FittedLayouts:
    """Fit the law of layouts to measured rows of any table: ten are enough if they vary.

    Columns are guessed by name: GPUs, nodes, dp, tp, pp, cp, ep, ZeRO stage, micro and global batch
    or accumulation, model or layers and width, sequence length, step time or tokens/s, memory,
    status. `assume` gives what the table does not say, such as {"gpu": "a100-40gb", "recomputed":
    "full"}. Rows that crashed are not used. Raises InputError if nothing can be read.
    """
    table = read_layouts(rows, assume=assume)
    law = layout_law.fit(table.cases, table.step_s.tolist())
    return FittedLayouts(law, table, dict(assume or {}))
