"""Values for all rows of a table of layouts that no column gives: from its notes, or usual ones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

from lab.analysis.layout_columns import ALL_GPUS, RATES
from lab.analysis.layout_page import Page
from lab.analysis.layout_words import ADAPTERS, DENIED, SHARED, SIZED, noted_model, settings
from lab.formatting import model_size
from lab.perfmodel import transformer
from lab.perfmodel.frameworks import Framework
from lab.perfmodel.hardware import GPUS, named_gpu

# What a section may say of all tables in it: not what these compare, such as GPUs or models.
OF_SECTIONS = {
    *("sequence", "global_batch", "micro_batch", "replica_batch", "per_node", "tensor", "pipeline"),
    *("context", "expert", "precision", "recomputed"),
}
# Notes say nothing of one of these if a column gives another.
TOGETHER = (
    {"gpus", "nodes", "data"},
    {"global_batch", "replica_batch", "batch", "batch_tokens"},
)
# Where no GPU is named: the first, unless it is too slow for the rows.
USUAL_GPUS = ("a100", "h100", "b200")
UNNAMED = "because the table names no GPU"
UNSAID_PRECISION = "the table does not say which precision: bf16 is assumed"
UNSAID_STAGES = "the table does not say whether pipelines are interleaved"
# Where no GPU is named, the first that computes in this precision.
FIRST_WITH = {"fp8": "h100", "fp4": "b200", "mxfp8": "b200"}
MICROSCALED = re.compile(r"\bmx-?fp-?8", re.IGNORECASE)
TRAINS_ALL = re.compile(r"\bsft\b|\bfull\b|pre-?train|supervised", re.IGNORECASE)
# Notes also explain abbreviations, such as SP.
NOTED_SEQUENCE_PARALLEL = re.compile(
    r"\b(?:with|using|uses?|without)\s+sequence.parallel(?:ism)?", re.IGNORECASE
)


def table_defaults(
    page: Page, meanings: Collection[str], precisions: Collection[str], framework: Framework
) -> tuple[dict[str, Any], list[str]]:
    """Values for all rows, from the notes or else as usual, with sentences on what was assumed.

    `meanings` are those of columns and assumptions, `precisions` those of the rows. Notes that
    give several values of something say nothing of it.
    """
    columns = set(meanings)
    values = _settings(page, columns)
    counts = {name: value for name, value in values.items() if isinstance(value, float)}
    sentences = [f"{name.replace('_', ' ')} {n:g}, from the notes" for name, n in counts.items()]
    stated = [values[name] for name in ("precision", "sharding") if name in values]
    sentences += [f"{value}, from the notes" for value in stated]
    sentences += _enter_model(page, columns, values)
    if not precisions and "precision" not in {*columns, *values}:
        sentences.append(UNSAID_PRECISION)
    if "gpu" not in columns:
        values["gpu"], why = _gpu(page, {*precisions, values.get("precision")})
        sentences.append(f"{values['gpu'].upper()} GPUs, {why}")
    sentences += _enter_sequence_parallel(page, columns, values)
    if "pipeline" in columns and "interleave" not in {*columns, *values}:
        sentences += _enter_stages(values, framework)
    if "recomputed" not in {*columns, *values}:
        sentences += _enter_recomputation(columns, values, framework)
    return values, sentences


def _settings(page: Page, columns: set[str]) -> dict[str, Any]:
    """What the notes say that no column does, then what sections around them leave no doubt of."""
    notes = page.notes
    stated = _with_relatives(columns)
    if SHARED & columns or re.search(r"\bddp\b", notes, re.IGNORECASE):
        stated.add("sharding")
    values = {name: value for name, value in settings(notes).items() if name not in stated}
    if values.get("sharding") == "hsdp" and re.search(r"\bfsdp|full_?shard", notes, re.IGNORECASE):
        values["sharding"] = "fsdp"  # it is not said which rows are hybrid
    left = OF_SECTIONS - stated - _with_relatives(set(values))
    return values | {name: one for name, one in settings(page.outer).items() if name in left}


def _with_relatives(names: set[str]) -> set[str]:
    """These names and all that say the same in another way."""
    return names.union(*(together for together in TOGETHER if together & names))


def _enter_model(page: Page, columns: set[str], values: dict[str, Any]) -> Iterator[str]:
    """Enter the model that the notes name, else its kind, and whether only adapters are trained."""
    # Layers alone are those of a named model that was cut.
    sized = {*(SIZED - {"layers"}), "width"} & columns
    if not sized and (model := noted_model(page.notes)):
        values["noted_model"] = model
        yield f"a model of {model_size(model.parameters)} parameters, from the notes"
    if transformer.named("", page.notes) is None:
        heading = page.opening.partition("\n")[0]
        values["noted_kind"] = transformer.other_kind("; ".join([page.title, heading, *page.above]))
    text = DENIED.sub("", page.notes)
    if ADAPTERS.search(text) and not TRAINS_ALL.search(text):
        values["adapters"] = True


def _gpu(page: Page, precisions: set[str | None]) -> tuple[str, str]:
    """The GPU of a table without a column for it, and why it is this one."""
    gpu = next(filter(None, map(named_gpu, page.above)), None)  # before footnotes on others
    if gpu is None and (noted := named_gpu(page.notes)):
        gpu = GPUS.get(page.gpu, noted)  # the first that prose names
    if gpu:
        return gpu.name, "from the notes"
    if MICROSCALED.search(page.notes):
        precisions = {*precisions, "mxfp8"}
    needed = next((kind for kind in reversed(FIRST_WITH) if kind in precisions), "")
    kind = needed.replace("mxfp8", "fp4")  # the same GPUs were first to have both
    if page.gpu and (not kind or kind in GPUS[page.gpu].flops):
        return page.gpu, f"which the page names first, {UNNAMED}"
    if needed:
        return FIRST_WITH[needed], f"{UNNAMED}, and earlier ones have no {needed}"
    return USUAL_GPUS[0], UNNAMED


def _enter_sequence_parallel(
    page: Page, columns: set[str], values: dict[str, Any]
) -> Iterator[str]:
    words = {match.lower() for match in NOTED_SEQUENCE_PARALLEL.findall(page.notes)}
    denied = {word.startswith("without") for word in words}
    if "sequence_parallel" not in columns and len(denied) == 1:
        values["sequence_parallel"] = "off" if denied.pop() else "on"
        yield f"sequence parallelism {values['sequence_parallel']}, from the notes"


def _enter_stages(values: dict[str, Any], framework: Framework) -> Iterator[str]:
    if framework.interleave > 1:
        values["interleave"] = framework.interleave
        yield f"{UNSAID_STAGES}: {framework.interleave} stages on each rank are assumed"


def _enter_recomputation(
    columns: set[str], values: dict[str, Any], framework: Framework
) -> Iterator[str]:
    timed = {"time", *RATES} & columns
    unlabelled = {"flops", ALL_GPUS + "flops"} & columns
    if framework.counts_recomputed and unlabelled and not timed:
        values["recomputed"] = "full"
        yield "full recomputation, which this framework's formula of FLOPs counts"
        return
    assumed = "half are assumed" if framework.recomputed else "none, as this framework's default"
    yield f"the table does not say whether activations are recomputed: {assumed}"
