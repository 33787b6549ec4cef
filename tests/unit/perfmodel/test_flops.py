"""Counts of the cost model against the real modules: parameters, torch's own FLOP counter, tensors
that autograd saves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pretrained_folders
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.config.models import CNN, MODELS, Network
from lab.config.models import GPT as Config
from lab.config.run import Run
from lab.perfmodel.flops import (
    _NETWORKS,
    first_trainable,
    flops_per_sample,
    gpt_flops_per_token,
    gpt_parameters,
    model_cost,
)
from lab.worker import models
from lab.worker.data.dataset import Dataset, Labelled
from lab.worker.models.classifier import import_torchvision
from lab.worker.models.gpt import GPT

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS = 32
SMALL: dict[str, dict[str, Any]] = {
    "gpt": {"kind": "gpt", "layers": 2, "heads": 2, "width": 64, "block_size": TOKENS},
    "text-classifier": {
        "kind": "text-classifier",
        "layers": 2,
        "heads": 2,
        "width": 64,
        "block_size": TOKENS,
    },
}
SIZES = {"resnet18": 40, "vgg16": 32, "squeezenet1_0": 40, "densenet121": 40, "alexnet": 63}
for network, size in SIZES.items():
    SMALL[network] = {"kind": "cnn", "network": network, "image_size": size}
for network in ("resnet18", "squeezenet1_0"):
    for trainable in ("head", 0.3):
        SMALL[f"{network} {trainable}"] = SMALL[network] | {"trainable": trainable}
SMALL["resnet18 frozen norm"] = SMALL["resnet18"] | {"batch_norm": "frozen"}
DATA = {"kind": "synthetic", "channels": 1, "vocab_size": 1000}


def dataset(run: Run) -> Dataset:
    """What a model asks its data, without samples."""
    nothing = Labelled(np.empty(0), np.empty(0))
    facts = {name: getattr(run.dataset, name) for name in ("vocab_size", "classes", "channels")}
    return Dataset(nothing, nothing, sha256="", description="", **facts)


def built(run: Run) -> torch.nn.Module:
    """The model without values: counts need none, and drawing them takes longer than all the
    rest.
    """
    with torch.device("meta"):
        model = models.build(run, dataset(run))
    return model.to_empty(device="cpu").train()


def batch(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    draw, samples = torch.Generator().manual_seed(0), run.micro_batch_size
    classes = torch.randint(0, 10, (samples,), generator=draw)
    if isinstance(run.architecture, CNN):
        return torch.randint(0, 255, (samples, 1, 8, 8), generator=draw, dtype=torch.uint8), classes
    tokens = torch.randint(1, 300, (samples, TOKENS), generator=draw)
    if isinstance(run.architecture, Config):
        return tokens, tokens.roll(-1)
    tokens[:, -5:] = 0  # padding
    return tokens, classes


def saved_bytes(model: torch.nn.Module, run: Run) -> int:
    """Bytes that autograd keeps for the backward pass, each storage once, those of the model itself
    left out.
    """
    own = {
        tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]
    }
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*batch(run))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def check(run: Run, model: torch.nn.Module) -> None:
    cost = model_cost(run)
    assert cost.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert cost.trainable == sum(
        parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )
    assert cost.activation_bytes == saved_bytes(model, run)
    # Fused attention computes scores twice; written out it does what is counted.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model(*batch(run))
        forward = counter.get_total_flops()
        loss.backward()
        whole = counter.get_total_flops()
    assert (cost.forward_flops, cost.backward_flops) == (
        forward / run.micro_batch_size,
        (whole - forward) / run.micro_batch_size,
    )


@pytest.mark.parametrize("name", list(SMALL))
def test_counts_are_those_of_the_real_model(name: str) -> None:
    run = Run(model=SMALL[name], data=DATA, global_batch_size=2)
    check(run, built(run))


def test_counts_of_distilbert_are_those_of_transformers(tmp_path: Path) -> None:
    model = pretrained_folders.distilbert(tmp_path / "encoder", block_size=TOKENS)
    for trainable in ("all", "head"):
        run = Run(
            model=model | {"trainable": trainable},
            data=DATA | {"vocab_size": 300},
            global_batch_size=2,
        )
        real = models.build(
            run, Dataset(**(vars(dataset(run)) | {"pretrained": tmp_path / "encoder"}))
        )
        check(run, real.train())


@pytest.mark.parametrize("name", list(SMALL))
def test_low_precision_keeps_less_but_also_copies_of_weights(name: str) -> None:
    run = Run(model=SMALL[name], data=DATA, global_batch_size=2, precision="bf16")
    model = built(run)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        saved = saved_bytes(model, run)
    cost, whole = model_cost(run), model_cost(run.model_copy(update={"precision": "fp32"}))
    assert cost.activation_bytes + cost.copy_bytes == saved
    assert cost.activation_bytes < whole.activation_bytes
    assert (cost.copy_bytes > 0) == (name != "resnet18 head") and whole.copy_bytes == 0


def test_published_numbers_of_parameters() -> None:
    millions = {"gpt2-small": 124.4, "gpt2-medium": 354.8, "gpt2-large": 774.0, "gpt2-xl": 1557.6}
    for name, size in millions.items():
        assert gpt_parameters(MODELS[name], 4096) / 1e6 == pytest.approx(size, abs=0.05)
    # torchvision's documentation, for three channels and a thousand classes.
    published = {
        "resnet18": 11689512,
        "vgg16": 138357544,
        "squeezenet1_0": 1248424,
        "densenet121": 7978856,
        "alexnet": 61100840,
    }
    for name, count in published.items():
        run = Run(model=name, data={"kind": "synthetic", "classes": 1000}, global_batch_size=1)
        assert model_cost(run).parameters == count


def test_published_operations_of_the_networks() -> None:
    # torchvision's documentation: billions of multiplications and additions in pairs, at 224 x 224.
    published = {
        "resnet18": 1.81,
        "vgg16": 15.47,
        "squeezenet1_0": 0.82,
        "densenet121": 2.83,
        "alexnet": 0.71,
    }
    for name, pairs in published.items():
        model = {"kind": "cnn", "network": name, "image_size": 224}
        run = Run(model=model, data={"kind": "synthetic", "classes": 1000}, global_batch_size=1)
        assert model_cost(run).forward_flops / 2e9 == pytest.approx(pairs, abs=0.011)


def test_flops_of_gpt2_small_by_hand() -> None:
    assert (
        gpt_flops_per_token(MODELS["gpt2-small"], 50257)
        == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 1024 * 768
    )


@pytest.mark.parametrize(
    "name", [name for name, model in MODELS.items() if isinstance(model, Config)]
)
def test_the_published_formula_and_the_count_agree(name: str) -> None:
    run = Run(model=name, global_batch_size=1)
    cost = model_cost(run)
    assert cost.parameters == gpt_parameters(run.architecture, run.dataset.vocab_size)
    assert flops_per_sample(run) == pytest.approx(
        cost.forward_flops + cost.backward_flops, rel=0.01
    )


def test_the_vocabulary_of_the_data_counts_where_the_model_names_none() -> None:
    config = MODELS["gpt-nano"]
    assert gpt_parameters(config, 4097) - gpt_parameters(config, 4096) == config.width


@pytest.mark.parametrize("name", list(MODELS))
def test_parameters_of_presets_are_those_of_the_real_model(name: str) -> None:
    run = Run(model=name, data={"kind": "synthetic"}, global_batch_size=1)
    with torch.device("meta"):
        if isinstance(run.architecture, Config):
            vocab_size = run.architecture.vocab_size or run.dataset.vocab_size
            model = GPT(run.architecture, vocab_size=vocab_size)
        elif name == "distilbert":
            import_torchvision()  # as the lab does before it
            transformers = pytest.importorskip("transformers")
            model = transformers.DistilBertForSequenceClassification(
                transformers.DistilBertConfig(num_labels=10)
            )
        else:
            model = models.build(run, Dataset(**(vars(dataset(run)))))
    assert model_cost(run).parameters == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("trainable", "frozen"),
    [("all", 0), ("head", 3), (0.05, 3), (0.1, 3), (0.11, 2), (0.3, 2), (0.999, 0)],
    ids=str,
)
def test_the_fewest_last_layers_that_hold_a_share_train(
    trainable: str | float, frozen: int
) -> None:
    assert first_trainable([40, 30, 20, 10], trainable) == frozen


def test_every_network_is_counted() -> None:
    assert set(_NETWORKS) == set(SIZES) == set(get_args(Network))
