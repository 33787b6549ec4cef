"""Layout tables from any source: the model, the layout, the machine and the step time.

Columns are guessed by their usual names, gaps in a table are filled from its notes, and every
assumption is listed.
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
_NUMBER_OF = "((n|num|number_of)_?)?"
NAMES = {
    "tensor": rf"tp{_SIZE}|tensor(_model)?_parallel(ism)?(_size|_degree)?",
    "pipeline": rf"pp{_SIZE}|pipeline(_model)?_parallel(ism)?(_size|_degree)?",
    "context": rf"cp{_SIZE}|context_parallel(ism)?(_size|_degree)?",
    "expert": rf"ep{_SIZE}|expert(_model)?_parallel(ism)?(_size|_degree)?",
    "data": rf"dp{_SIZE}|data_parallel(ism)?(_size|_degree)?",
    "interleave": r"vp|vpp|virtual_pipeline.*|interleav.*",
    "zero": r"zero_?[123]?(_?(stage|level))?|zs|ds_zero.*",
    "fsdp": "fsdp(_size)?",
    "sharding": r"shard(ing)?(_strategy)?|strategy",
    "layers": rf"{_NUMBER_OF}((hidden|transformer)_)?layers?|depth",
    "width": rf"{_NUMBER_OF}hidden|(hidden|embed(ding)?)_?(size|dim(ension)?|width)"
    r"|model_?(dim(ension)?|width)|d_?model|width|n_?embd",
    "heads": rf"{_NUMBER_OF}((attention|attn)_)?heads?",
    "groups": rf"{_NUMBER_OF}(kv|key_value|query)_(heads|groups)|n_?kv.*",
    "hidden": r"(ffn|mlp|intermediate|feed_?forward)_?(hidden_)?(size|dim|width)?",
    "vocabulary": r"(padded_)?vocab(ulary)?(_?size)?",
    "experts": rf"{_NUMBER_OF}experts",
    "active": rf"{_NUMBER_OF}(activ(e|ated)_experts|experts_per_tok(en)?)|(moe_(router_)?)?top_?k",
    "recomputed": r"(act(ivations?)?_|grad(ient)?_)?(checkpoint(ing|s)?|ckpt|recomput.*)|ac",
    "memory": r".*(memory|vram)(_.*)?|peak_mem(_.*)?|mem(_gb|_gib)?",
    "status": r"status|result|outcome|state",
    "sequence": r"(max_?)?(seq(uence)?|context|ctx)_?len(gth)?(_t(okens)?)?|seq_?len|seq",
    "micro_batch": r"(micro|per_?gpu|device|local)_?(batch)_?(size)?(_per_gpu)?|mbs|microbatch",
    "global_batch": r"(global|total)_?(train_)?batch_?(size)?|gbs",
    "batch": r"(mini_?|train(ing)?_?)?(batch(_?size)?|bsz?)",
    "accum": r"grad(ient)?_?acc(um)?(ulation)?(_steps)?|gas?|accumulation(_steps)?|micro_num",
    "parameters": r"(n|num)_?param(eter)?s|param(eter)?s",
    "mfu": r"(model_flops?_utili[sz]ation|mfu)(_pct|_percent)?",
}
# Columns whose cells tell what they mean: numbers or words.
EITHER = {
    "gpus?": ("gpus", "gpu"),
    "model_?size": ("width", "size"),
    "size": (None, "size"),
}
TEXT = {"recomputed", "status", "sharding", "zero", "model", "size", "gpu", "precision"}
# What a caller may assume of every row: all that a column can give, except what was measured.
ASSUMED = sorted({*NAMES, "gpus", "nodes", "per_node", *TEXT} - {"memory", "status", "mfu"})
GUESSED = {
    "world_size": "gpus", "nodes": "nodes", "per_node": "per_node", "model": "model",
    "global_batch_size": "global_batch", "micro_batch_size": "micro_batch", "gpu": "gpu",
    "grad_accum": "accum", "precision": "precision", "device": "gpu", "parameters": "parameters",
    "sequence_length": "sequence",
}  # fmt: skip
# TGS are tokens per GPU and second.
TOKENS = r"tok|(^|_)(t_per_s|tps|tgs)"
RATE = re.compile(rf"({TOKENS}|sampl|imag|seq|(^|_)s_per_s)")
PER_SECOND = re.compile(r"per_s|throughput|tok_s|(^|_)t[pg]s(_|$)")
# In lengths of sequences K is 1024.
UNITS = {
    "time": TIME_UNITS,
    "memory": BYTE_UNITS,
    "parameters": COUNT_UNITS | {"b": 1e9, "t": 1e12},
    "sequence": {"k": 2.0**10, "m": 2.0**20},
}
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
NO = re.compile(r"(false|0|0\.0|off|no(ne|t)?\b.*|without\b.*)?")
FAILED = re.compile("oom|out of memory|crash|fail|error|killed|timeout", re.IGNORECASE)
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
    cells = [
        {meant: _cell(meant, column, row) for meant, column in columns.items()}
        for row in frame.to_dict("records")
    ]
    every = [defaults | {key: one for key, one in row.items() if one is not None} for row in cells]
    if "batch" in columns and (meant := _meaning_of_batch(every)):
        every = [{meant: values.get("batch")} | values for values in every]
        what = "a whole step" if meant == "global_batch" else "one micro-batch"
        assumptions.append(f"{columns['batch']!r} is that of {what}, by the other columns")
    if any(re.search("hsdp|hybrid", str(values.get("sharding", "")).lower()) for values in every):
        assumptions.append("HSDP is counted as FSDP over all replicas")
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
            values[name] = _stage("", str(value).lower()) if name == "zero" else str(value)
        elif not math.isfinite(read := number(value, units=UNITS.get(name, COUNT_UNITS))):
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
        for names, (of_numbers, of_words) in EITHER.items():
            if meant is None and re.fullmatch(names, stem):
                numeric = any(math.isfinite(number(cell)) for cell in frame[column])
                meant = of_numbers if numeric else of_words
        if meant is None and re.fullmatch("system|gpu_?(type|model|name)|hardware", stem):
            meant = "gpu"
        if meant is None and (guessed := guess(column)):
            meant = GUESSED.get(guessed.canonical)
            if guessed.canonical == "time" and guessed.per == "step":
                meant = "time"
        if RATE.search(stem) and PER_SECOND.search(stem) and "flop" not in stem:
            things = "tokens" if re.search(TOKENS, stem) else "samples"
            meant = f"{things}_per_gpu" if re.search("gpu|tgs", stem) else things
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
    if meant == "zero":
        return _stage(normal(column), text.lower())
    if meant in TEXT:
        return text
    units, factor = UNITS.get(meant), 1.0
    if meant in {"time", "memory"}:
        guessed = guess(column)
        unstated = 1.0 if meant == "time" else 1e9
        factor = guessed.factor if guessed and guessed.factor else unstated
    elif units:
        factor = units.get(normal(column).split("_")[-1], 1.0)
    if meant == "mfu" and re.search("pct|percent", normal(column)):
        factor = 0.01
    value = number(cell, units=units, factor=factor)
    return value if math.isfinite(value) else None


def _stage(column: str, text: str) -> str:
    """ZeRO's stage in a cell, or in its column's name, whose cells then say where it was used."""
    if named := re.search("[123]", column):
        return "" if NO.fullmatch(text) else f"zero{named[0]}"
    stage = re.search("[0-3]", text)
    return f"zero{stage[0]}" if stage else text


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
    split = math.prod(_whole(values, name) for name in ("tensor", "pipeline", "context"))
    gpus = values.get("gpus") or (values.get("nodes") or 0) * (values.get("per_node") or 0)
    data = _whole(values, "data", (gpus or split) / split)
    gpus = gpus or data * split
    if gpus % split or data * split > gpus:
        raise ValueError(f"{gpus:g} GPUs are not a multiple of tp x pp x cp")
    return gpus, round(gpus / split)


def _whole(values: Mapping[str, Any], name: str, default: float = 1) -> int:
    return max(round(float(values.get(name) or default)), 1)


def _row(place: int, values: Mapping[str, Any], notes: str, *, timed: bool) -> LayoutRow:
    """A row of a table; raises ValueError with what it lacks."""
    gpus, data = _ranks(values)
    tensor, pipeline, context = (_whole(values, name) for name in ("tensor", "pipeline", "context"))
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
        expert=min(_whole(values, "expert"), data * context * tensor),
        interleave=min(_whole(values, "interleave"), max(model.layers // pipeline, 1)),
        sequence_parallel=framework.sequence_parallel,
    )
    candidate = Candidate(
        layout,
        round(micro),
        max(round(passes), 1),
        _recomputed(values),
        _precision(str(values.get("precision", "bf16"))),
    )
    failed = bool(FAILED.search(str(values.get("status", ""))))
    step_s = None if failed else _step(values, gpus, batch, sequence)
    if step_s is None and timed and not failed:
        raise ValueError("no step time and no rate")
    memory = values.get("memory")
    # If nothing is stated, half a pass is the smaller error either way.
    recomputed = None if "recomputed" in values else 0.5
    case = Case(model, int(sequence), candidate, machine, recomputed, framework)
    parameters = values.get("parameters") or transformer.size(_name(values))
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
    if mixture and (model is None or model.experts == 1):
        raise ValueError(f"unknown mixture of experts {text or '(ep > 1)'}: no {', '.join(lacks)}")
    if model is None and (parameters := values.get("parameters") or transformer.size(text)):
        model = transformer.of_parameters(parameters, vocabulary=vocabulary)
    if model is None:
        raise ValueError(f"unknown model {text}" if text else "no model and no model sizes")
    return model


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
