"""Published weights in a folder of the user's: Hugging Face's layout, read without a network and without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lab.config.models import GPT, DistilBERT, Model
from lab.config.paths import resolve_weights
from lab.errors import InputError, Problem

FILES = ("config.json", "model.safetensors", "tokenizer.json")
# What config.json calls the sizes that a configuration of ours names.
_GPT2 = {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "vocab_size": "vocab_size"}
_DISTILBERT = {"layers": "n_layers", "heads": "n_heads", "width": "dim", "vocab_size": "vocab_size"}
_DISTILBERT |= {"positions": "max_position_embeddings"}


def folder_of(model: Model, *, data_root: Path) -> Path | None:
    """The folder of a model's published weights, None where it starts from random ones.

    Raises InputError where it may not be read, lacks one of FILES, or holds another model than the configuration says.
    """
    if not isinstance(model, GPT | DistilBERT) or model.weights is None:
        return None
    folder = resolve_weights(model.weights, data_root)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        what = f"{model.weights!r} lacks {', '.join(missing)}"
        advice = f"a folder with {', '.join(FILES)}, as published on Hugging Face"
        raise InputError("model", [Problem("weights", what, advice)])
    _require_sizes(model, folder)
    return folder


def _require_sizes(model: GPT | DistilBERT, folder: Path) -> None:
    kind, sizes = ("gpt2", _GPT2) if isinstance(model, GPT) else ("distilbert", _DISTILBERT)
    config = read_config(folder)
    if config.get("model_type") != kind:
        raise InputError(
            "model",
            [Problem("weights", f"{folder} holds a {config.get('model_type')!r}, not a {kind!r}")],
        )
    problems = [
        Problem(
            name,
            f"{getattr(model, name)}, and the weights have {config[published]}",
            f"{name}: {config[published]}",
        )
        for name, published in sizes.items()
        if config.get(published) != getattr(model, name)
    ]
    positions = config.get("n_positions") if isinstance(model, GPT) else model.positions
    if not isinstance(positions, int) or model.block_size > positions:
        problems.append(
            Problem(
                "block_size",
                f"{model.block_size}, and the weights have {positions} positions",
                "use fewer",
            )
        )
    if problems:
        raise InputError("model", problems)


def read_config(folder: Path) -> dict[str, Any]:
    """The content of config.json; raises InputError where it is no mapping."""
    try:
        content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            "model", [Problem("weights", f"{folder / 'config.json'} cannot be read: {error}")]
        ) from None
    if not isinstance(content, dict):
        raise InputError("model", [Problem("weights", f"{folder / 'config.json'} is no mapping")])
    return content


def gpt2_weights(folder: Path, config: GPT) -> Mapping[str, Tensor]:
    """The weights of GPT-2 under the names of our GPT, with as many positions as its block size.

    GPT-2 was published with linear layers as (in, out), torch's are (out, in). Raises InputError where one is missing.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found = {
            name.removeprefix("transformer."): tensor
            for name, tensor in load_file(folder / "model.safetensors").items()
        }
    except (OSError, SafetensorError) as error:
        raise InputError(
            "model", [Problem("weights", f"{folder / 'model.safetensors'} cannot be read: {error}")]
        ) from None
    names = {
        "embedding.weight": "wte.weight",
        "positions.weight": "wpe.weight",
        "norm.weight": "ln_f.weight",
        "norm.bias": "ln_f.bias",
    }
    parts = {
        "norm_1": "ln_1",
        "attention.qkv": "attn.c_attn",
        "attention.projection": "attn.c_proj",
    }
    parts |= {"norm_2": "ln_2", "up": "mlp.c_fc", "down": "mlp.c_proj"}
    for layer in range(config.layers):
        for ours, published in parts.items():
            for kind in ("weight", "bias"):
                names[f"blocks.{layer}.{ours}.{kind}"] = f"h.{layer}.{published}.{kind}"
    missing = [published for published in names.values() if published not in found]
    if missing:
        raise InputError(
            "model",
            [Problem("weights", f"{folder / 'model.safetensors'} lacks {', '.join(missing[:3])}")],
        )
    weights = {ours: found[published] for ours, published in names.items()}
    weights["positions.weight"] = weights["positions.weight"][: config.block_size]
    return {
        ours: tensor.t().contiguous()
        if ".c_" in names[ours] and ours.endswith("weight")
        else tensor
        for ours, tensor in weights.items()
    }
