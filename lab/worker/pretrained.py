"""Published weights in a user's folder, laid out as on Hugging Face: no network, no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from lab.config.models import GPT, DistilBERT, Model
from lab.config.paths import resolve_weights
from lab.errors import InputError, Problem
from lab.files import read_json

# Weights as safetensors only: reading a pickle can run any code.
FILES = ("config.json", "model.safetensors", "tokenizer.json")
# The names of a configuration's sizes in config.json.
_GPT2 = {"layers": "n_layer", "heads": "n_head", "width": "n_embd", "vocab_size": "vocab_size"}
_DISTILBERT = {
    "layers": "n_layers",
    "heads": "n_heads",
    "width": "dim",
    "vocab_size": "vocab_size",
    "positions": "max_position_embeddings",
}
# Names of the published weights, GPT's own first.
_WEIGHTS = {
    "embedding.weight": "wte.weight",
    "positions.weight": "wpe.weight",
    "norm.weight": "ln_f.weight",
    "norm.bias": "ln_f.bias",
}
_LAYERS = {
    "norm_1": "ln_1",
    "attention.qkv": "attn.c_attn",
    "attention.projection": "attn.c_proj",
    "norm_2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}


def folder_of(model: Model, *, data_root: Path) -> Path | None:
    """The folder of a model's published weights, None for a model initialized at random.

    Raises InputError for a folder that may not be read, lacks a file, or holds another model.
    """
    if not isinstance(model, GPT | DistilBERT) or model.weights is None:
        return None
    folder = resolve_weights(model.weights, data_root)
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        advice = f"name a folder with {', '.join(FILES)}, as published on Hugging Face"
        raise _unusable(f"{model.weights!r} lacks {', '.join(missing)}", advice)
    kind, sizes = ("gpt2", _GPT2) if isinstance(model, GPT) else ("distilbert", _DISTILBERT)
    config = read_json(folder / "config.json")
    if config is None:
        raise _unusable(f"{folder / 'config.json'} is not a JSON mapping")
    if config.get("model_type") != kind:
        raise _unusable(f"{folder} holds a {config.get('model_type')!r}, not a {kind!r}")
    # Different sizes would fail later too, but with an error that names tensors.
    problems = []
    for name, published in sizes.items():
        size = config.get(published)
        if size != getattr(model, name):
            what = f"{getattr(model, name)}, but the weights have {size}"
            problems.append(Problem(name, what, f"set {name}: {size}"))
    positions = config.get("n_positions") if isinstance(model, GPT) else model.positions
    if not isinstance(positions, int) or model.block_size > positions:
        what = f"{model.block_size}, but the weights have {positions} positions"
        problems.append(Problem("block_size", what, "use fewer"))
    if problems:
        raise InputError("model", problems)
    return folder


def _unusable(what: str, advice: str = "") -> InputError:
    return InputError.of("model", "weights", what, advice)


def gpt2_weights(folder: Path, config: GPT) -> Mapping[str, Tensor]:
    """The weights of GPT-2 under the names of our GPT, with as many positions as its block size.

    Raises InputError for a file that cannot be read or lacks a tensor.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise _unusable(f"{file} cannot be read: {error}") from None
    # Some were saved with the name of the whole model as a prefix.
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    names = _WEIGHTS | {
        f"blocks.{layer}.{ours}.{kind}": f"h.{layer}.{published}.{kind}"
        for layer in range(config.layers)
        for ours, published in _LAYERS.items()
        for kind in ("weight", "bias")
    }
    missing = [published for published in names.values() if published not in tensors]
    if missing:
        raise _unusable(f"{file} lacks {', '.join(missing[:3])}")
    weights = {ours: tensors[published] for ours, published in names.items()}
    # A shorter block size uses only the first positions.
    weights["positions.weight"] = weights["positions.weight"][: config.block_size]
    for ours, published in names.items():
        # GPT-2's linear layers ("c_...") were published as (in, out); torch's are (out, in).
        if ".c_" in published and ours.endswith("weight"):
            weights[ours] = weights[ours].t().contiguous()
    return weights
