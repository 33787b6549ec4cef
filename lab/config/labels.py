"""What the settings of a run are called among people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.config.run import Run

# In the order in which they are said; of a switch, what it is called where it is not at its default.
WORDS: dict[str, str] = {
    "data": "{}",
    "grad_accum": "accumulation {}",
    "compile": "compiled",
    "bucket_cap_mb": "buckets of {} MiB",
    "gradient_as_bucket_view": "gradients beside the buckets",
    "static_graph": "static graph",
    "compression": "{} on the link",
    "powersgd_rank": "approximation of rank {}",
    "flat": "flat",
    "reshard_after_forward": "no resharding",
    "shard_size": "shards on {} ranks",
    "schedule": "{}",
    "microbatches": "{} microbatches",
    "activation_checkpointing": "checkpointing",
    "loader": "{} loader",
    "loader_workers": "{} workers",
    "learning_rate": "learning rate {}",
    "min_learning_rate": "least learning rate {}",
    "weight_decay": "weight decay {}",
    "grad_clip": "clipping at {}",
    "seed": "seed {}",
}
NAMES = {"powersgd": "PowerSGD", "gpipe": "GPipe", "1f1b": "1F1B"}


def setting_label(setting: str, value: Any) -> str:
    """A setting with its value in a few words: `flat`, `bf16 on the link`, `buckets of 100 MiB`."""
    words = WORDS.get(setting, f"{setting.replace('_', ' ')} {{}}")
    return words.format(
        NAMES.get(value, value)
        if isinstance(value, str)
        else f"{value:g}"
        if isinstance(value, float)
        else value
    )


def run_label(run: Run) -> str:
    """A short name: model, strategy, world size, batch, precision, and the settings that differ from the defaults.

    How long is trained and evaluated is left out.
    """
    return _joined(label_parts(run), set(label_parts(run)))


def label_parts(run: Run) -> list[str]:
    """The words of its label: model, what is done with it, on how many devices, and all that follows."""
    model, *sizes = names(run)["model"].split(", ")
    place = f"x{run.world_size}" + (
        "" if run.needs_device == "any" else f" on {run.needs_device.upper()}"
    )
    given = [
        setting_label(name, names(run).get(name, getattr(run, name)))
        for name in WORDS
        if not is_default(run, name)
    ]
    if run.task == "inference":
        return [model, "inference", place, run.quantization, *sizes, *given]
    return [
        model,
        run.strategy,
        place,
        f"batch {run.global_batch_size}",
        run.precision,
        *sizes,
        *given,
    ]


def distinct_labels(runs: Sequence[Run]) -> tuple[dict[Run, str], str]:
    """Labels of runs without the words that all of them share, and those words; sizes of models are told where it takes them."""
    words = {run: label_parts(run) for run in runs}
    shared = set.intersection(*map(set, words.values())) if len(words) > 1 else set()
    common = _joined(next(iter(words.values())), shared) if shared else ""
    sizes = {run: set(names(run)["model"].split(", ")[1:]) for run in runs}
    short = {run: _joined(own, set(own) - shared - sizes[run]) for run, own in words.items()}
    if len(set(short.values())) < len(short):
        short = {run: _joined(own, set(own) - shared) for run, own in words.items()}
    return {run: text or run.label for run, text in short.items()}, common


def _joined(words: Sequence[str], wanted: set[str]) -> str:
    """Of the words of a label those that are wanted: `gpt-nano ddp x2, batch 8`."""
    head = " ".join(word for word in words[:3] if word in wanted)
    return ", ".join([*([head] if head else []), *(word for word in words[3:] if word in wanted)])


def names(run: Run) -> dict[str, str]:
    """What model and data set are called: their names where they have one, else all that tells them from others."""
    return {
        name: part if isinstance(part, str) else part.label
        for name, part in (("model", run.model), ("data", run.data))
    }


def is_default(run: Run, name: str) -> bool:
    """Whether a setting is what it is where nobody names it."""
    return bool(getattr(run, name) == type(run).model_fields[name].default)
