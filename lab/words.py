"""What the settings of a run are called among people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.study import Run

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
    "loader_workers": "{} loader processes",
    "learning_rate": "learning rate {}",
    "min_learning_rate": "least learning rate {}",
    "weight_decay": "weight decay {}",
    "grad_clip": "clipping at {}",
    "seed": "seed {}",
}
NAMES = {"powersgd": "PowerSGD", "gpipe": "GPipe", "1f1b": "1F1B"}


def said(setting: str, value: Any) -> str:
    """A setting with its value in a few words: `flat`, `bf16 on the link`, `buckets of 100 MiB`."""
    words = WORDS.get(setting, f"{setting.replace('_', ' ')} {{}}")
    return words.format(
        NAMES.get(value, value) if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else value
    )


def label(run: Run) -> str:
    """A short name: model, strategy, world size, batch, precision, and the settings that differ from the defaults.

    How long is trained and evaluated is left out.
    """
    model, *more = names(run)["model"].split(", ")
    place = f"x{run.world_size}" + ("" if run.needs_device == "any" else f" on {run.needs_device.upper()}")
    given = [said(name, names(run).get(name, getattr(run, name))) for name in WORDS if not is_default(run, name)]
    if run.task == "inference":
        return ", ".join([f"{model} inference {place}", run.quantization, *more, *given])
    return ", ".join([f"{model} {run.strategy} {place}", f"batch {run.global_batch_size}", run.precision, *more, *given])


def names(run: Run) -> dict[str, str]:
    """What model and data set are called: their names where they have one, else all that tells them from others."""
    return {name: part if isinstance(part, str) else part.label for name, part in (("model", run.model), ("data", run.data))}


def is_default(run: Run, name: str) -> bool:
    """Whether a setting is what it is where nobody names it."""
    return bool(getattr(run, name) == type(run).model_fields[name].default)
