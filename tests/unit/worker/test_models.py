"""Models: published weights give published logits, frozen parts stay, padding changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pretrained_folders
import pytest
import torch

from lab.config.models import CNN, SMALLEST_IMAGE
from lab.config.models import GPT as GPTConfig
from lab.config.models import DistilBERT as DistilBERTConfig
from lab.config.models import TextClassifier as TextClassifierConfig
from lab.config.run import Run
from lab.errors import InputError
from lab.worker import data, models
from lab.worker.data.dataset import Dataset, Labelled
from lab.worker.models.classifier import Classifier, DistilBERT, TextClassifier, Vision
from lab.worker.models.gpt import GPT
from lab.worker.pretrained import folder_of, gpt2_weights


@pytest.fixture(autouse=True)
def _cache_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)


def quiet(*progress: object) -> None:
    pass


@pytest.mark.parametrize("positions", [32, 12])
def test_published_weights_of_gpt2_give_the_logits_of_transformers(
    tmp_path: Path, positions: int
) -> None:
    config = GPTConfig.model_validate(
        pretrained_folders.gpt2(tmp_path / "gpt2") | {"block_size": positions}
    )
    model = GPT(config, vocab_size=300)
    model.load_state_dict(gpt2_weights(tmp_path / "gpt2", config))
    from transformers import GPT2LMHeadModel

    reference = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2").eval()
    tokens = torch.randint(300, (2, positions))
    with torch.no_grad():
        assert torch.allclose(model.eval()(tokens), reference(tokens).logits, atol=1e-5)


def test_weights_bring_their_tokenizer(tmp_path: Path) -> None:
    model = pretrained_folders.gpt2(tmp_path / "gpt2", positions=8)
    (tmp_path / "corpus.txt").write_text("def the import of a self x\n" * 50)
    run = Run(
        model=model | {"weights": "gpt2"},
        data={"kind": "text", "path": "corpus.txt"},
        global_batch_size=2,
    )
    dataset = data.prepare(run, data_root=tmp_path, progress=quiet)
    inputs, _ = dataset.train.take(np.array([0]))
    assert [pretrained_folders.WORDS[token] for token in inputs[0]] == [
        "def",
        "the",
        "import",
        "of",
        "a",
        "self",
        "x",
        "def",
    ]
    assert dataset.vocab_size == 300 and isinstance(models.build(run, dataset), GPT)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "another size": ({"layers": 3}, r"layers: 3, but the weights have 2; set layers: 2"),
    "too long": ({"block_size": 64}, "64, but the weights have 32 positions"),
    "missing": ({"weights": "gpt3"}, r"'gpt3': no such file or folder; did you mean 'gpt2'\?"),
    "outside": ({"weights": "/etc"}, "lies outside the study's folder"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    config = GPTConfig.model_validate(
        pretrained_folders.gpt2(tmp_path / "gpt2") | {"weights": "gpt2"} | change
    )
    with pytest.raises(InputError, match=message):
        folder_of(config, data_root=tmp_path)


def test_a_folder_without_its_files_is_named(tmp_path: Path) -> None:
    pretrained_folders.gpt2(tmp_path / "gpt2")
    (tmp_path / "gpt2" / "tokenizer.json").unlink()
    config = GPTConfig(layers=2, heads=2, width=32, block_size=8, vocab_size=300, weights="gpt2")
    with pytest.raises(InputError, match=r"lacks tokenizer\.json; name a folder with"):
        folder_of(config, data_root=tmp_path)
    (tmp_path / "gpt2" / "tokenizer.json").write_text("{}")
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(InputError, match="holds a 'bert', not a 'gpt2'"):
        folder_of(config, data_root=tmp_path)


def test_distilbert_gives_the_hidden_states_of_its_folder_and_skips_padding(tmp_path: Path) -> None:
    config = DistilBERTConfig.model_validate(pretrained_folders.distilbert(tmp_path / "encoder"))
    model = DistilBERT(config, folder=tmp_path / "encoder", classes=4, pad=0).eval()
    from transformers import DistilBertModel

    reference = DistilBertModel.from_pretrained(tmp_path / "encoder").eval()
    tokens = torch.randint(5, 300, (2, 20))
    with torch.no_grad():
        expected = reference(input_ids=tokens).last_hidden_state
        assert torch.allclose(
            model.network.distilbert(input_ids=tokens).last_hidden_state, expected, atol=1e-6
        )
        padded = torch.nn.functional.pad(tokens, (0, 12))
        assert torch.allclose(model.logits(padded), model.logits(tokens), atol=1e-5)


def test_padding_changes_nothing_and_text_does() -> None:
    config = TextClassifierConfig(layers=2, heads=2, width=32, block_size=32)
    model = TextClassifier(config, vocab_size=300, classes=4)
    tokens = torch.randint(1, 300, (3, 20))
    scores = model.logits(tokens)
    assert torch.allclose(model.logits(torch.nn.functional.pad(tokens, (0, 12))), scores, atol=1e-6)
    assert not torch.allclose(model.logits(tokens.roll(1, dims=1)), scores, atol=1e-4)
    assert torch.isfinite(model.logits(torch.zeros_like(tokens))).all()


@pytest.mark.parametrize("network", list(SMALLEST_IMAGE))
def test_each_network_takes_its_smallest_image_and_no_smaller(network: Any) -> None:
    least = SMALLEST_IMAGE[network]
    assert CNN(network=network, image_size=least).image_size == least
    with torch.device("meta"):
        model = Vision(CNN(network=network, image_size=least), channels=1, classes=10).eval()
        images = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    assert model.logits(images).shape == (2, 10)
    model.image_size = least - 1
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        model.logits(images)


def test_frozen_parameters_and_frozen_batch_norm_stay_as_they_are() -> None:
    config = CNN(network="resnet18", image_size=32, trainable="head", batch_norm="frozen")
    model = Vision(config, channels=3, classes=4).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(
        torch.randint(0, 255, (4, 3, 32, 32), dtype=torch.uint8), torch.tensor([0, 1, 2, 3])
    ).backward()
    optimizer.step()
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"network.fc.weight", "network.fc.bias"}


def test_accuracy_is_the_share_of_right_classes() -> None:
    class Always(Classifier):
        def logits(self, inputs: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(inputs, 3).float()

    classified = models.score(
        Always().eval(), torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 2, 0])
    )
    assert classified.accuracy.item() == 0.75
    language = GPT(GPTConfig(layers=1, heads=1, width=8, block_size=4), vocab_size=16)
    assert models.score(
        language, torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)
    ).accuracy.isnan()


def test_a_classifier_learns_the_topics_of_synthetic_texts() -> None:
    config = {"kind": "synthetic", "samples": 200, "vocab_size": 300, "classes": 3}
    model = {"kind": "text-classifier", "layers": 1, "heads": 2, "width": 32, "block_size": 32}
    run = Run(model=model, data=config, global_batch_size=64)
    dataset = data.prepare(run, data_root=Path(), progress=quiet)
    network = models.build(run, dataset)
    assert (
        isinstance(dataset, Dataset)
        and isinstance(dataset.train, Labelled)
        and isinstance(dataset.held_out, Labelled)
    )
    batch = [torch.from_numpy(part) for part in dataset.train.take(np.arange(180))]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for _ in range(30):
        network(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    network.eval()
    held_out = [torch.from_numpy(part) for part in dataset.held_out.take(np.arange(20))]
    assert models.score(network, *held_out).accuracy > 0.6


@pytest.mark.parametrize(
    ("model", "kernel"),
    [
        ("gpt-nano", "flash_attention"),
        (
            {"kind": "gpt", "layers": 1, "heads": 2, "width": 32, "block_size": 16, "dropout": 0.1},
            "math",
        ),
        ("resnet18", None),
    ],
)
def test_the_kernel_of_attention_is_torchs_choice(model: Any, kernel: str | None) -> None:
    source = "digits" if kernel is None else "stdlib"
    run = Run(model=model, data=source, global_batch_size=8, world_size=1)
    assert models.attention_kernel(run, torch.device("cpu")) == kernel
