"""Layout tables from any source: the model, the layout, the machine and the step time.

Columns are guessed by their usual names, gaps in a table are filled from its notes, and every
assumption is listed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lab.analysis.audit.columns import guess, normal
from lab.analysis.audit.text_table import read_table
from lab.analysis.audit.values import BYTE_UNITS, COUNT_UNITS, TIME_UNITS, number
from lab.errors import InputError, Problem, nearest
from lab.formatting import count
from lab.perfmodel import layout_law, transformer
from lab.perfmodel.hardware import LINKS, Machine, named_gpu
from lab.perfmodel.layout import Candidate, Checkpointing, Layout, Sharing
from lab.perfmodel.layout_law import Case, LayoutLaw, named_framework
from lab.perfmodel.transformer import Transformer

if TYPE_CHECKING:
    import pandas as pd

# Columns only layout tables have, by whole normalized name; the audit's guesses cover the rest.
_SIZE = "(_?(size|degree|parallel(ism)?(_size|_degree)?|world_?size))?"
NAMES = {
    "tensor": rf"tp{_SIZE}|tensor(_model)?_parallel(ism)?(_size|_degree)?",
    "pipeline": rf"pp{_SIZE}|pipeline(_model)?_parallel(ism)?(_size|_degree)?",
    "context": rf"cp{_SIZE}|context_parallel(ism)?(_size|_degree)?",
    "expert": rf"ep{_SIZE}|expert(_model)?_parallel(ism)?(_size|_degree)?",
    "data": rf"dp{_SIZE}|data_parallel(ism)?(_size|_degree)?",
    "interleave": r"vp|vpp|virtual_pipeline.*|interleav.*",
    "zero": r"zero(_?stage)?|ds_zero.*",
    "fsdp": "fsdp(_size)?",
    "sharding": r"shard(ing)?(_strategy)?|strategy",
    "layers": r"(n|num|number_of)?_?layers?|depth",
    "width": r"(hidden|model|embed(ding)?)_?(size|dim(ension)?|width)|d_?model|width|n_?embd",
    "heads": r"((n|num)_)?(attention_)?heads?|n_?head",
    "groups": r"((n|num)_)?(kv|key_value|query)_(heads|groups)|n_?kv.*",
    "hidden": r"(ffn|mlp|intermediate|feed_?forward)_?(hidden_)?(size|dim|width)?",
    "vocabulary": r"(padded_)?vocab(ulary)?(_?size)?",
    "experts": r"((n|num)_)?experts",
    "recomputed": r"(activation_|gradient_)?(checkpoint(ing)?|recompute.*|recomputation)",
    "memory": r".*(memory|vram)(_.*)?|peak_mem(_.*)?|mem(_gb|_gib)?",
    "status": r"status|result|outcome|state",
    "sequence": r"(max_?)?(seq(uence)?|context|ctx)_?len(gth)?(_t(okens)?)?|seq_?len|seq",
    "micro_batch": r"(micro|per_?gpu|device|local)_?(batch)_?(size)?(_per_gpu)?|mbs|microbatch",
    "global_batch": r"(global|total)_?(train_)?batch_?(size)?|gbs",
    "accum": r"grad(ient)?_?acc(um)?(ulation)?(_steps)?|gas?|accumulation(_steps)?",
    "parameters": r"(n|num)_?param(eter)?s|param(eter)?s",
    "mfu": r"(model_flops?_utili[sz]ation|mfu)(_pct|_percent)?",
}
TEXT = {"recomputed", "status", "sharding", "model", "gpu", "precision"}
# What a caller may assume of every row: all that a column can give, except what was measured.
ASSUMED = sorted({*NAMES, "gpus", "nodes", "per_node", *TEXT} - {"memory", "status", "mfu"})
GUESSED = {
    "world_size": "gpus", "nodes": "nodes", "per_node": "per_node", "model": "model",
    "global_batch_size": "global_batch", "micro_batch_size": "micro_batch", "gpu": "gpu",
    "grad_accum": "accum", "precision": "precision", "device": "gpu", "parameters": "parameters",
    "sequence_length": "sequence",
}  # fmt: skip
RATE = re.compile(r"tok|(^|_)t_per_s|sampl|imag|seq|(^|_)s_per_s")
NOTED = {
    "sequence": r"sequences?(?: length| of)?[ =:]*(\d{3,7})",
    "global_batch": r"global batch(?: size| of)?[ =:]*(\d+)",
    "per_node": r"x ?(\d+) per node|(\d+) GPUs per node",
}
ZERO_STAGES: dict[int, Sharing] = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}
FAILED = re.compile("oom|out of memory|crash|fail|error|killed|timeout", re.IGNORECASE)
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
    columns = _columns(frame)
    defaults, assumptions = _defaults(columns, notes, _assumed(assume or {}))
    rows: list[LayoutRow] = []
    left_out: Counter[str] = Counter()
    for place, cells in enumerate(frame.to_dict("records")):
        values = {meant: _cell(meant, column, cells) for meant, column in columns.items()}
        given = {key: value for key, value in values.items() if value is not None}
        try:
            rows.append(_row(place, {**defaults, **given}, notes, timed=timed))
        except ValueError as error:
            left_out[str(error)] += 1
    if not rows:
        problems = [Problem(count(n, "row"), reason, ADVICE) for reason, n in left_out.items()]
        raise InputError(name, problems or [Problem("table", "has no rows", ADVICE)])
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
            values[name] = str(value)
        elif not math.isfinite(read := number(value, units=COUNT_UNITS)):
            problems.append(Problem(name, f"{value!r} is not a number", "give one, such as 8"))
        else:
            values[name] = read
    if problems:
        raise InputError("assume", problems)
    return values


def _columns(frame: pd.DataFrame) -> dict[str, str]:
    columns: dict[str, str] = {}
    for column in map(str, frame.columns):
        stem = normal(column.strip(" #"))
        meant = next((name for name, names in NAMES.items() if re.fullmatch(names, stem)), None)
        if meant is None and re.fullmatch("gpus?", stem):
            numeric = math.isfinite(number(frame[column].iloc[0])) if len(frame) else False
            meant = "gpus" if numeric else "gpu"
        if meant is None and re.fullmatch("system|gpu_?(type|model|name)|hardware", stem):
            meant = "gpu"
        if meant is None and (guessed := guess(column)):
            meant = GUESSED.get(guessed.canonical)
            if guessed.canonical == "time" and guessed.per == "step":
                meant = "time"
        if RATE.search(stem) and re.search("per_s|throughput|tok_s", stem) and "flop" not in stem:
            things = "tokens" if re.search(r"tok|(^|_)t_per_s", stem) else "samples"
            meant = f"{things}_per_gpu" if "gpu" in stem else things
        if meant and meant not in columns:
            columns[meant] = column
    return columns


def _defaults(
    columns: Mapping[str, str], notes: str, assume: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    assumptions = []
    for meant, pattern in NOTED.items():
        if meant not in columns and (match := re.search(pattern, notes, re.IGNORECASE)):
            values[meant] = float(match[1] or match[2])
            assumptions.append(f"{meant.replace('_', ' ')} {values[meant]:g}, from the notes")
    gpu = named_gpu(notes)
    if "gpu" not in columns and "gpu" not in assume:
        values["gpu"] = gpu.name if gpu else "a100"
        by = "from the notes" if gpu else "because the table names no GPU"
        assumptions.append(f"{values['gpu'].upper()} GPUs, {by}")
    if "recomputed" not in columns and "recomputed" not in assume:
        full = r"full (activation )?(recomputation|recompute|checkpoint)"
        if re.search(full, notes, re.IGNORECASE):
            values["recomputed"] = "full"
        else:
            assumptions.append(
                "the table does not say whether activations are recomputed: half are assumed"
            )
    return values | assume, assumptions


def _cell(meant: str, column: str, cells: Mapping[Any, Any]) -> Any:
    cell = cells[column]
    text = "" if cell is None else str(cell).strip()
    # In these columns "none" is an answer.
    answers = {"none"} if meant in {"status", "recomputed"} else set()
    if text.lower() in {"", "nan", "<na>", "none", "n/a", "-"} - answers:
        return None
    if meant in TEXT:
        return text
    units = {"time": TIME_UNITS, "memory": BYTE_UNITS, "parameters": COUNT_UNITS}.get(meant)
    factor = 1.0
    if meant in {"time", "memory"}:
        guessed = guess(column)
        unstated = 1.0 if meant == "time" else 1e9
        factor = guessed.factor if guessed and guessed.factor else unstated
    if meant == "mfu" and re.search("pct|percent", normal(column)):
        factor = 0.01
    value = number(cell, units=units, factor=factor)
    return value if math.isfinite(value) else None


def _row(place: int, values: Mapping[str, Any], notes: str, *, timed: bool) -> LayoutRow:
    """A row of a table; raises ValueError with what it lacks."""

    def whole(name: str, default: float = 1) -> int:
        return max(round(float(values.get(name) or default)), 1)

    tensor, pipeline, context = whole("tensor"), whole("pipeline"), whole("context")
    gpus = values.get("gpus") or (values.get("nodes") or 0) * (values.get("per_node") or 0)
    split = tensor * pipeline * context
    data = whole("data", (gpus or split) / split)
    gpus = gpus or data * split
    if gpus % split or data * split > gpus:
        raise ValueError(f"{gpus:g} GPUs are not a multiple of tp x pp x cp")
    data = round(gpus / split)
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
        expert=min(whole("expert"), data * context * tensor),
        interleave=min(whole("interleave"), max(model.layers // pipeline, 1)),
        sequence_parallel=framework.sequence_parallel,
    )
    candidate = Candidate(
        layout, round(micro), max(round(passes), 1), _recomputed(values), _precision(values)
    )
    failed = bool(FAILED.search(str(values.get("status", ""))))
    step_s = None if failed else _step(values, gpus, batch, sequence)
    if step_s is None and timed and not failed:
        raise ValueError("no step time and no rate")
    memory = values.get("memory")
    # If nothing is stated, half a pass is the smaller error either way.
    recomputed = None if "recomputed" in values else 0.5
    case = Case(model, int(sequence), candidate, machine, recomputed, framework)
    parameters = values.get("parameters") or transformer.size(str(values.get("model", "")))
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
        raise ValueError("no batch size")
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


def _model(values: Mapping[str, Any], notes: str) -> Transformer:
    vocabulary = int(values.get("vocabulary") or transformer.GPT2_VOCABULARY)
    if (layers := values.get("layers")) and (width := values.get("width")):
        heads = int(values.get("heads") or max(width // 64, 1))
        gated = bool(re.search("llama|swiglu", notes, re.IGNORECASE))
        hidden = int(values.get("hidden") or 4 * width)
        groups, experts = int(values.get("groups") or 0), int(values.get("experts") or 1)
        return Transformer(
            int(layers), int(width), heads, hidden, vocabulary, groups, gated, experts=experts
        )
    text = str(values.get("model", ""))
    model = transformer.named(text, notes)
    if model is None and transformer.has_experts(text):
        raise ValueError(f"unknown mixture of experts {text}")
    if model is None and (parameters := values.get("parameters") or transformer.size(text)):
        model = transformer.of_parameters(parameters, vocabulary=vocabulary)
    if model is None:
        raise ValueError(f"unknown model {text}" if text else "no model and no model sizes")
    return model


def _sharing(values: Mapping[str, Any], data: int) -> Sharing:
    if data == 1:
        return "single"
    words = str(values.get("sharding", "")).lower()
    if re.search(r"full_?shard|fsdp|zero-?3", words) or (values.get("fsdp") or 0) > 1:
        return "fsdp"
    if "zero" in values:
        return ZERO_STAGES.get(int(values["zero"]), "ddp")
    return "zero2" if re.search(r"shard_?grad|zero-?2", words) else "ddp"


def _recomputed(values: Mapping[str, Any]) -> Checkpointing:
    text = str(values.get("recomputed", "")).lower()
    if "select" in text:
        return "selective"
    return "none" if text in {"", "false", "0", "0.0", "no", "none", "off"} else "full"


def _precision(values: Mapping[str, Any]) -> str:
    text = re.sub("[^a-z0-9]", "", str(values.get("precision", "bf16")).lower())
    names = {
        "fp32": "fp32|float32",
        "tf32": "tf32",
        "fp16": "fp16|half|amp",
        "fp8": "fp8",
        "fp4": "fp4",
    }
    return next((name for name, words in names.items() if re.search(words, text)), "bf16")


def _step(values: Mapping[str, Any], gpus: float, batch: float, sequence: float) -> float | None:
    work = {
        "tokens_per_gpu": batch * sequence / gpus,
        "tokens": batch * sequence,
        "samples_per_gpu": batch / gpus,
        "samples": batch,
    }
    if time := values.get("time"):
        return float(time)
    return next((work[name] / values[name] for name in work if values.get(name)), None)


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
