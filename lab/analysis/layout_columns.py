"""Columns of layout tables by their usual names, and their cells as numbers or words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from lab.analysis.audit.columns import BATCH, FSDP, IDEAL, SPEED, ZERO, counted, guess, normal
from lab.analysis.audit.values import (
    BYTE_UNITS,
    CHANGE,
    COUNT_UNITS,
    EMPTY,
    FLOPS_UNITS,
    PARAMETER_UNITS,
    TIME_UNITS,
    number,
    ranks_of,
)

# Columns only layout tables have, or which mean something else in others, by whole normalized name.
_NUMBER_OF = "((n|num|number_of)_?)?"
NAMES = {
    "zero": ZERO,
    "fsdp": FSDP,
    "shard": "shard(ing)?_(size|degree|group(_size)?|dim)",
    "sharding": r"shard(ing)?(_strategy)?|strategy",
    "model": "((base|pretrained)_)?model_(name_)?or_path",
    "tensor": "model_?parallel(ism)?(_(size|degree))?",
    "micro_batch": "mbz",
    "layers": rf"{_NUMBER_OF}((hidden|transformer)_)?layers?|depth",
    "width": rf"{_NUMBER_OF}hidden|(hidden|embed(ding)?)_?(size|dim(ension)?|width)"
    r"|model_?(dim(ension)?|width)|d_?model|width|n_?embd",
    "heads": rf"{_NUMBER_OF}((attention|attn)_)?heads?",
    "groups": rf"{_NUMBER_OF}(kv|key_value|query)_(heads|groups)|n_?kv.*",
    "hidden": r"(ffn|mlp|intermediate|feed_?forward)_?(hidden_)?(size|dim|width)?",
    "vocabulary": r"(padded_)?vocab(ulary)?(_?size)?",
    "experts": rf"{_NUMBER_OF}experts",
    "active": rf"{_NUMBER_OF}(activ(e|ated)_experts|experts_per_tok(en)?)|(moe_(router_)?)?top_?k",
    "recomputed": r"checkpoint(ing|s)?|ckpt|ac",
    "sequence": "max_?len(gth)?",
    "status": r"status|result|outcome|state",
    "batch": BATCH,
    "batch_tokens": r"((global|total|train(ing)?)_?)?(batch(_?size)?|bsz?|gbs)(_in)?(_[km])?"
    r"_tok(en)?s?|tokens_per_(global_)?(batch|step|iter(ation)?)",
    "replica_batch": r"(batch(_?size)?|bsz?)_per_(dp|(model_)?replica|dp_(rank|group))"
    r"|local_(batch(_?size)?|bsz?)|lbs",
    "parameters": "(model_?)?(size)?(_in)?_([kmbt]|bn|millions?|billions?)",
    "remarks": r"(foot)?notes?|remarks?|comments?|(\w+_)?optimi[sz]ations?|parallelism"
    r"|parallel(ism)?_(strategy|config(uration)?)|config(uration)?|setup|techniques?|method|recipe",
}
# What the audit calls the others.
GUESSED = {
    "tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "dp": "data",
    "dp_replicate": "replicate", "dp_shard": "shard", "sequence_parallel": "sequence_parallel",
    "interleave": "interleave", "world_size": "gpus", "nodes": "nodes", "per_node": "per_node",
    "gpu": "gpu", "device": "gpu", "model": "model", "parameters": "parameters",
    "sequence_length": "sequence", "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch", "grad_accum": "accum",
    "recompute": "recomputed", "precision": "precision", "memory": "memory", "mfu": "mfu",
}  # fmt: skip
# Letters of formulas, as in the papers on Megatron-LM; one alone may mean anything.
SYMBOLS = {
    "$t$": "tensor", "$p$": "pipeline", "$d$": "data", "$c$": "context", "$B$": "global_batch",
    "$b$": "micro_batch",
}  # fmt: skip
FEWEST_SYMBOLS = 3
DEGREES = ("tensor", "pipeline", "context", "expert")
# What a step did, most direct first; FLOPS also if they are those of all GPUs.
RATES = ("tokens_per_gpu", "tokens", "samples_per_gpu", "samples")
FLOPS = ("model_flops", "hardware_flops", "flops")
ALL_GPUS = "all_"
MEASURED = {"time", "memory", "mfu", *RATES, *FLOPS, *(ALL_GPUS + name for name in FLOPS)}
TEXT = {
    *("recomputed", "status", "sharding", "zero", "model", "size", "gpu", "precision"),
    *("sequence_parallel", "remarks"),
}
# What a caller may assume of every row: all that a column can give, except what was measured.
ASSUMED = sorted({*NAMES, *GUESSED.values(), *TEXT} - {"memory", "status", "mfu", "remarks"})
# A rate's name may say where it was measured, and its cells the unit: "Throughput on 8 A100".
RATE = rf"{SPEED}(_(on|with|for)_.*)?"
STEP = "((train(ing)?|global|optimizer)_)?(step|iter(ation)?|update)s?"
RATED = {"token": "tokens", "sample": "samples", "image": "samples", "sequence": "samples"}
# Remarks, as in "tok/s (16 GPUs)" and "samples (4K) per second".
OF_ALL = re.compile(r"\(\d+ ?(?:K|GPUs?|ranks?|devices?)\)", re.IGNORECASE)
SAMPLE_LENGTH = re.compile(r"\((\d+) ?K\)", re.IGNORECASE)  # of "samples (4K) per second"
FLOP_RATE = re.compile(r"(^|_)(t|p)flops?(_|$)")
NO_FLOP_RATE = re.compile(
    rf"{IDEAL}|percent|pct|util|peak|_(vs|of)_|_per_(step|iter|tok|sampl|seq|batch|layer)"
)
_LENGTHS = {"k": 2.0**10, "m": 2.0**20}
# In lengths of sequences, and in tokens per batch, K is 1024.
UNITS = {
    "time": TIME_UNITS,
    "memory": BYTE_UNITS,
    "parameters": PARAMETER_UNITS,
    "sequence": _LENGTHS,
    "batch_tokens": _LENGTHS,
    **dict.fromkeys(RATES, COUNT_UNITS | dict.fromkeys(("tps", "tgs", "wps"), 1.0)),
    **{prefix + name: FLOPS_UNITS for prefix in ("", ALL_GPUS) for name in FLOPS},
}
LABEL = re.compile(r"[\d.,]+\s*([mbt])(n|illions?)?", re.IGNORECASE)
MOST_MEMORY = 1e12  # bytes of a GPU
MOST_FLOPS = 1e21  # per second, of all GPUs
LEAST_WIDTH, WIDTH_STEP = 64, 32  # of models: other numbers for a size count parameters
NO = re.compile(r"(false|0|0\.0|off|no(ne|t)?\b.*|without\b.*)?")
YES, SWITCHED_ON = re.compile("true|on|yes|y|✓|✅"), 2.0  # of more than one rank
LIST = re.compile(r"[a-z]+(?:(?:\s*/\s*|,\s+)[a-z]+)+", re.IGNORECASE)
SEPARATOR, COUNT = re.compile(r"\s*/\s*|,\s+"), re.compile(r"\d+k?", re.IGNORECASE)
FAILED = re.compile("oom|out of memory|crash|fail|error|killed|timeout", re.IGNORECASE)


def split_lists(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with a column for each setting of lists: 2/1/4 below TP/PP/CP are three."""
    split: dict[str, list[str]] = {}
    lists = []
    for place, column in enumerate(map(str, frame.columns)):
        match = LIST.search(column)
        names = SEPARATOR.split(match[0]) if match else []
        if sum(meaning(name) is not None for name in names) < 2:
            continue
        cells = [SEPARATOR.split(_text(cell).strip("()[]")) for cell in frame.iloc[:, place]]
        if all(len(cell) == len(names) and all(map(COUNT.fullmatch, cell)) for cell in cells):
            lists.append(place)
            split |= dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))
    if not lists:
        return frame
    kept = frame.drop(columns=frame.columns[lists])
    new = {name: values for name, values in split.items() if name not in kept.columns}
    return kept.assign(**new)


def turned(frame: pd.DataFrame) -> pd.DataFrame | None:
    """The table with a row for each column after the first, if its rows are what was set and
    measured; else None.

    The columns' names, such as "on 8x H100 GPUs (GBS=128)", become cells, each with the first
    one's, such as "Llama 3 8B (TP=1, CP=2)", which says something of all. Columns of changes in per
    cent compare others.
    """
    compared = [_is_comparison(frame.iloc[:, place].tolist()) for place in range(frame.shape[1])]
    frame = frame.loc[:, [not one for one in compared]]
    if not frame.shape[1]:
        return None
    first, *others = map(str, frame.columns)
    names = frame.iloc[:, 0].map(_text).tolist()
    rows = frame.iloc[:, 1:].to_numpy().tolist()
    meant = [meaning(name, cells) for name, cells in zip(names, rows, strict=True)]
    kinds = set(meant) - {None}
    ambiguous = len(set(names)) < len(names) or first in names
    if ambiguous or len(kinds) < 2 or not kinds & MEASURED or 2 * meant.count(None) > len(meant):
        return None
    if len(set(map(meaning, others))) > 1:
        return None  # they have meanings of their own
    sideways = frame.iloc[:, 1:].T.reset_index(drop=True).set_axis(names, axis="columns")
    sideways.insert(0, first, [f"{first} {name}" for name in others])
    sideways.attrs = frame.attrs
    return sideways


def _is_comparison(cells: Sequence[Any]) -> bool:
    """Whether all cells of a column that are not empty are changes in per cent, such as -7.4 %."""
    texts = [_text(cell) for cell in cells]
    filled = [text for text in texts if text.lower() not in EMPTY]
    return bool(filled) and all(map(CHANGE.fullmatch, filled))


def meanings(frame: pd.DataFrame) -> dict[str, str]:
    """The first column of each recognized meaning."""
    columns: dict[str, str] = {}
    letters = len(SYMBOLS.keys() & set(map(str, frame.columns))) >= FEWEST_SYMBOLS
    for place, column in enumerate(map(str, frame.columns)):
        meant = SYMBOLS.get(column) if letters else None
        cells = frame.iloc[:, place].tolist()
        meant = meant or meaning(column, cells)
        if meant and meant not in columns and _says(meant, column, cells):
            columns[meant] = column
    return columns


def meaning(column: str, cells: Sequence[Any] = ()) -> str | None:
    """What a column of this name holds, and of these cells where the name does not tell."""
    name = OF_ALL.sub("", column)
    stem, guessed = normal(name.strip(" #")), guess(name)
    things = "tokens" if _sample_tokens(column) else RATED.get(counted(name))
    if things and guessed and guessed.canonical in {"rate", "rate_per_rank"}:
        return things if guessed.canonical == "rate" else f"{things}_per_gpu"
    if FLOP_RATE.search(stem) and not NO_FLOP_RATE.search(stem):
        return _flops(stem)
    named = next((name for name, names in NAMES.items() if re.fullmatch(names, stem)), None)
    if named := named or _by_cells(stem, cells):
        return named
    if re.fullmatch(f"{RATE}|{STEP}", stem) and (unit := _unit(cells)):
        return "time" if unit in TIME_UNITS else meaning(f"{column} {unit}")
    if guessed and guessed.canonical == "time" and guessed.per == "step":
        return "time"
    return GUESSED.get(guessed.canonical) if guessed else None


def _says(meant: str, column: str, cells: Sequence[Any]) -> bool:
    """Whether a column of settings has any or is empty; MBS1 GBS256 below "Batch" are words."""
    if meant in TEXT | MEASURED or all(_text(cell).lower() in EMPTY for cell in cells):
        return True
    return any(
        value == value and value is not None for value in column_values(meant, column, cells)
    )


def _unit(cells: Sequence[Any]) -> str:
    """The unit of a column's cells, such as samples/s of "17 samples/s"; "" if they disagree."""
    texts = [_text(cell).lower() for cell in cells]
    matches = [re.fullmatch(r"[\d.,]+\s*([a-z][a-z/ ]*)", text) for text in texts]
    units = {match[1] for match in matches if match} - {"oom"}
    return units.pop() if len(units) == 1 else ""


def _flops(stem: str) -> str:
    """FLOP/s of the model, of the hardware, or unlabelled; petaFLOP/s are those of all GPUs."""
    kinds = {"hardware_flops": "hardware|hw|hfu", "model_flops": "model|mfu"}
    kind = next((name for name, words in kinds.items() if re.search(words, stem)), "flops")
    together = re.search(r"aggregate|total|cluster|overall|all_gpus|(^|_)pflop", stem)
    return kind if "per_gpu" in stem or not together else ALL_GPUS + kind


def _by_cells(stem: str, cells: Sequence[Any]) -> str | None:
    """The meaning of a column whose cells tell it: numbers or words."""
    if not re.fullmatch(r"gpus?|(model_?)?size|llm", stem):
        return None
    values = [number(cell) for cell in cells if _text(cell).lower() not in EMPTY]
    if stem.startswith("gpu"):
        return "gpus" if any(map(math.isfinite, values)) else "gpu"
    if not all(map(math.isfinite, values)):
        return "size"
    if stem in {"size", "llm"}:
        return None
    widths = all(value >= LEAST_WIDTH and value % WIDTH_STEP == 0 for value in values)
    return "width" if widths else "parameters"


def column_values(meant: str, column: str, cells: Sequence[Any]) -> list[Any]:
    """A column's cells in base units or as words, None where empty.

    NaN is a degree of parallelism that this row does not give although others do.
    """
    factor = _factor(meant, column, cells)
    guessed = guess(column)
    inverse = guessed is not None and guessed.inverse and meant in {"time", *RATES}
    scale = 1.0 if inverse else factor
    # Most settings are the same in many rows.
    texts = {cell for cell in cells if isinstance(cell, str)}
    read = {text: _cell(meant, column, text, scale) for text in texts}
    values = [
        read[cell] if isinstance(cell, str) else _cell(meant, column, cell, scale) for cell in cells
    ]
    if inverse:  # steps per second
        values = [value and factor / value for value in values]
    if meant in DEGREES and any(value is not None for value in values):
        return [math.nan if value is None else value for value in values]
    if meant == "sequence_parallel" and not any(number(value) > 1 for value in values):
        return ["on" if number(value) == 1 else value for value in values]
    if meant == "fsdp" and any(NO.fullmatch(_text(cell).lower()) for cell in cells):
        return [SWITCHED_ON if value == 1 else value for value in values]
    if meant in {"model", "size"} and (label := _label(cells)):
        return [f"{value}{label}" if math.isfinite(number(value)) else value for value in values]
    return values


def crashed(meant: str, cell: Any) -> bool:
    """Whether a cell for a measured value says instead that the row did not run."""
    if meant not in MEASURED:
        return False
    text = _text(cell)
    if re.search("oom|out of memory", text, re.IGNORECASE):
        return True
    return bool(FAILED.search(text)) and not math.isfinite(number(text, units=UNITS.get(meant)))


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _label(cells: Sequence[Any]) -> str | None:
    """The unit of a column's labelled counts, such as B of "175B"; None if they disagree."""
    labels = {
        match[1].lower() for cell in cells if (match := LABEL.fullmatch(_text(cell).strip("~ ")))
    }
    return labels.pop() if len(labels) == 1 else None


def _factor(meant: str, column: str, cells: Sequence[Any]) -> float:
    """The unit of a column's numbers that have none of their own."""
    units, unit = UNITS.get(meant, {}), normal(column).split("_")[-1]
    guessed = guess(OF_ALL.sub("", column))
    if meant in {"time", "memory", "mfu", *RATES} and guessed and guessed.factor:
        return guessed.factor * (_sample_tokens(column) or 1.0)
    if meant == "memory":
        return _largest_unit(cells, MOST_MEMORY, 1e9, 1e6)
    if meant.endswith("flops"):
        named = 1e15 if re.search("(^|_)pflop", normal(column)) else 1e12
        return _largest_unit(cells, MOST_FLOPS, named)
    if meant == "parameters" and unit not in units:
        unit = _label(cells) or ""
    return units.get(unit, 1.0)


def _sample_tokens(column: str) -> float:
    """The tokens of each sample that a rate of this name counts; 0 if it does not say."""
    length = SAMPLE_LENGTH.search(column)
    counts_samples = RATED.get(counted(OF_ALL.sub("", column))) == "samples"
    return 1024.0 * int(length[1]) if length and counts_samples else 0.0


def _largest_unit(cells: Sequence[Any], most: float, *units: float) -> float:
    """The first of these units in which no cell is beyond what there can be, else 1."""
    largest = max((value for cell in cells if (value := number(cell)) > 0), default=0.0)
    return next((unit for unit in units if largest * unit < most), 1.0)


def _cell(meant: str, column: str, cell: Any, factor: float) -> Any:
    text = _text(cell)
    # In these columns "none" is an answer.
    answers = (
        {"none"} if meant in {"status", "recomputed", "sequence_parallel", *DEGREES} else set()
    )
    if text.lower() in EMPTY - answers:
        return None
    if meant == "zero":
        return stage(normal(column), text.lower())
    if meant in TEXT:
        return text
    if meant in DEGREES and NO.fullmatch(text.lower()):
        return 1.0
    if meant == "fsdp" and YES.fullmatch(text.lower()):
        return SWITCHED_ON
    if crashed(meant, text):
        return None
    value = number(cell, units=UNITS.get(meant), factor=factor)
    if meant == "gpus" and not math.isfinite(value):
        value = ranks_of(cell)[0]  # 16p
    if meant == "mfu" and "%" in text and value > 1:
        return 100 * value  # more than the peak, not a number of per cent
    measured = meant in {"time", "mfu", *RATES} or meant.endswith("flops")
    return value if math.isfinite(value) and (value > 0 or not measured) else None


def stage(column: str, text: str) -> str:
    """ZeRO's stage in a cell, or in its column's name, whose cells then say where it was used."""
    if named := re.search("[123]", column):
        return "" if NO.fullmatch(text) else f"zero{named[0]}"
    digit = re.search("[0-3]", text)
    return f"zero{digit[0]}" if digit else text
