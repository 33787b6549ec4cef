"""What can be trained: configurations of models and data sets, their names, and which of them fit together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Tag

from lab.errors import nearest
from lab.workloads.datasets import (
    DATA_KINDS,
    DATASETS,
    IMDB,
    MNIST,
    AGNews,
    Corpora,
    Data,
    Digits,
    Images,
    LabelledTexts,
    Shakespeare,
    Stdlib,
    Synthetic,
    Text,
    Topics,
)
from lab.workloads.frozen import Frozen
from lab.workloads.models import CNN, GPT, KINDS, MODELS, SMALLEST_IMAGE, DistilBERT, Model, Task, TextClassifier

__all__ = [
    "CNN", "DATASETS", "GPT", "IMDB", "MNIST", "MODELS", "SMALLEST_IMAGE", "TAGS", "AGNews", "Corpora", "Data", "DataField", "Digits",
    "DistilBERT", "Frozen", "Images", "LabelledTexts", "Model", "ModelField", "Shakespeare", "Stdlib", "Synthetic", "Task",
    "Text", "TextClassifier", "Topics", "data_of", "misfit", "model_of", "vocab_size_of",
]  # fmt: skip
TAGS: dict[str, type[BaseModel] | None] = {"name": None, **KINDS, **DATA_KINDS}


def _one_of(names: Mapping[str, Any], what: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r} is no {what} || {nearest(name, names)}")
        return name

    return AfterValidator(check)


def _from_preset(given: Any) -> Any:
    """A mapping with `preset: NAME` is that preset with the other keys changed."""
    if not isinstance(given, dict) or "preset" not in given:
        return given
    changes = {key: value for key, value in given.items() if key != "preset"}
    if given["preset"] not in MODELS:
        raise ValueError(f"{given['preset']!r} is no model preset || {nearest(str(given['preset']), MODELS)}")
    return MODELS[given["preset"]].model_dump() | changes


def _tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind) if kind is not None else None


ModelField = Annotated[
    Annotated[str, _one_of(MODELS, "model preset"), Tag("name")]
    | Annotated[GPT, Tag("gpt")]
    | Annotated[TextClassifier, Tag("text-classifier")]
    | Annotated[DistilBERT, Tag("distilbert")]
    | Annotated[CNN, Tag("cnn")],
    Discriminator(_tag),
    BeforeValidator(_from_preset),
]
DataField = Annotated[
    Annotated[str, _one_of(DATASETS, "data set"), Tag("name")]
    | Annotated[Stdlib, Tag("stdlib")]
    | Annotated[Text, Tag("text")]
    | Annotated[Shakespeare, Tag("shakespeare")]
    | Annotated[AGNews, Tag("ag_news")]
    | Annotated[IMDB, Tag("imdb")]
    | Annotated[Topics, Tag("topics")]
    | Annotated[MNIST, Tag("mnist")]
    | Annotated[Digits, Tag("digits")]
    | Annotated[Synthetic, Tag("synthetic")],
    Discriminator(_tag),
]


def model_of(model: str | Model) -> Model:
    """The configuration behind a preset's name, or the configuration itself."""
    return MODELS[model] if isinstance(model, str) else model


def data_of(data: str | Data) -> Data:
    """The configuration behind a data set's name, or the configuration itself."""
    return DATASETS[data] if isinstance(data, str) else data


def vocab_size_of(model: Model, data: Data) -> int:
    """Tokens that the model knows: its own vocabulary where it has one, else the data's; 0 for images."""
    if isinstance(model, CNN):
        return 0
    own = model.vocab_size if isinstance(model, GPT | DistilBERT) else None
    return own or int(getattr(data, "vocab_size", 0))


def misfit(model: Model, data: Data) -> str:
    """Why a model cannot be trained on a data set, with what fits; empty where it can."""
    if model.task in data.tasks:
        return ""
    others = [name for name, other in DATASETS.items() if model.task in other.tasks]
    models = [name for name, other in MODELS.items() if other.task in data.tasks]
    return (
        f"{model.label} does {model.task}, and data '{data.kind}' is for {' or '.join(data.tasks)} "
        f"|| data that fits: {', '.join(others)}; models that fit: {', '.join(models)}"
    )
