"""Configurations of models, and their named presets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from lab.config.base import Frozen, InvalidValueError
from lab.config.own import Own, Reference, Script
from lab.errors import nearest
from lab.formatting import count

Task = Literal["language modelling", "text classification", "image classification", "its own task"]
Network = Literal["resnet18", "vgg16", "squeezenet1_0", "densenet121", "alexnet"]

# The smallest image that leaves a non-empty input to each network's last pooling layer.
SMALLEST_IMAGE: dict[Network, int] = {
    "resnet18": 1,
    "vgg16": 32,
    "squeezenet1_0": 21,
    "densenet121": 29,
    "alexnet": 63,
}
WITH_BATCH_NORM: tuple[Network, ...] = ("resnet18", "densenet121")
WITH_DROPOUT: tuple[Network, ...] = ("vgg16", "squeezenet1_0", "alexnet")
BATCH_NORM_BY_RANK = "batch norm takes its statistics from each rank's micro-batch"
DROPOUT_BY_RANK = "each rank draws its own dropout"


def _trainable(value: str | float) -> str | float:
    if value not in ("all", "head") and (isinstance(value, str) or not 0 < value < 1):
        advice = "use 'all' for the whole model"
        if isinstance(value, str):
            advice = nearest(value, ["all", "head"])
        what = f"{value!r} is not 'all', 'head' or a share between 0 and 1"
        raise InvalidValueError(what, advice)
    return value


# Everything, the last layer, or the last layers with at least this share of the parameters.
Trainable = Annotated[str | float, AfterValidator(_trainable)]
Tokens = Annotated[int, Field(ge=2, le=1_048_576)]


class _Model(Frozen):
    @property
    def label(self) -> str:
        """A short name for people."""
        return ", ".join(part for part in self._label_parts() if part)

    def _label_parts(self) -> Iterable[str]:
        raise NotImplementedError


class _Transformer(_Model):
    layers: int = Field(ge=1, le=1000)
    heads: int = Field(ge=1, le=1024)
    width: int = Field(ge=1, le=65536)
    block_size: Tokens  # of a sample; longer texts are cut
    dropout: float | None

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise InvalidValueError(f"width {self.width} is not divisible by heads {self.heads}")
        return self

    @property
    def depends_on_split(self) -> str:
        """Why the loss curve depends on how ranks split the batch; empty if it must not."""
        return "" if self.dropout == 0 else DROPOUT_BY_RANK


class GPT(_Transformer):
    """A decoder-only transformer; `vocab_size` follows the data's tokenizer if not given.

    `weights` is a folder with GPT-2 as published on Hugging Face (config.json, model.safetensors,
    tokenizer.json), in a place where text may also lie; positions after `block_size` are dropped.
    """

    task: ClassVar[Task] = "language modelling"
    kind: Literal["gpt"] = "gpt"
    vocab_size: int | None = Field(default=None, ge=2, le=10_000_000)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    # Left out of dumps if there is none, so that earlier runs keep their id.
    weights: str | None = Field(default=None, min_length=1, exclude_if=lambda path: path is None)

    def _label_parts(self) -> Iterable[str]:
        yield from (f"gpt {self.layers}x{self.width}", *_sizes(self))
        yield f"vocabulary {self.vocab_size}" if self.vocab_size else ""
        yield _dropout(self.dropout or None)
        yield f"weights of {self.weights}" if self.weights else ""


class TextClassifier(_Transformer):
    """A transformer encoder with learned positions, a mean over the tokens, and a linear head."""

    task: ClassVar[Task] = "text classification"
    kind: Literal["text-classifier"] = "text-classifier"
    block_size: Tokens = 128
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)

    def _label_parts(self) -> Iterable[str]:
        yield from (f"text-classifier {self.layers}x{self.width}", *_sizes(self))
        yield _dropout(self.dropout or None)


class DistilBERT(_Transformer):
    """DistilBERT (Sanh et al., 2019) with a classification head, from a Hugging Face folder.

    The default sizes are those of distilbert-base-uncased; if the folder holds others, they must be
    given. `dropout` replaces the rates given in the folder.
    """

    task: ClassVar[Task] = "text classification"
    kind: Literal["distilbert"] = "distilbert"
    weights: str = Field(default="distilbert-base-uncased", min_length=1)
    layers: int = Field(default=6, ge=1, le=1000)
    heads: int = Field(default=12, ge=1, le=1024)
    width: int = Field(default=768, ge=1, le=65536)
    vocab_size: int = Field(default=30522, ge=2, le=10_000_000)
    positions: Tokens = 512  # learned, of which block_size are used
    block_size: Tokens = 128
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    trainable: Trainable = "all"

    @model_validator(mode="after")
    def _fits_positions(self) -> Self:
        if self.block_size > self.positions:
            what = f"block_size {self.block_size} is more than the {self.positions} positions"
            raise InvalidValueError(what, f"use at most {self.positions}")
        return self

    def _label_parts(self) -> Iterable[str]:
        usual = DistilBERT(
            trainable=self.trainable, dropout=self.dropout, block_size=self.block_size
        )
        yield f"distilbert {self.layers}x{self.width}"
        yield from (_part(self.trainable), *_sizes(self))
        if self != usual:
            yield from (f"vocabulary {self.vocab_size}", f"{self.positions} positions")
            yield f"weights of {self.weights}"
        yield _dropout(self.dropout)


class CNN(_Model):
    """One of torchvision's convolutional networks, with the data's channels and classes.

    Images are scaled to `image_size`. `dropout` replaces the published rate. Batch norm that is
    `frozen` normalizes with its running statistics and does not update them. Only then is the loss
    the same however ranks split the batch.
    """

    task: ClassVar[Task] = "image classification"
    kind: Literal["cnn"] = "cnn"
    network: Network
    image_size: int = Field(default=64, ge=1, le=4096)  # pixels a side
    trainable: Trainable = "all"
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    batch_norm: Literal["batch", "frozen"] = "batch"

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        least = SMALLEST_IMAGE[self.network]
        if self.image_size < least:
            what = f"image_size {self.image_size} leaves nothing to pool in {self.network}"
            raise InvalidValueError(what, f"use at least {least}")
        if self.batch_norm != "batch" and self.network not in WITH_BATCH_NORM:
            what = f"{self.network} has no batch norm to freeze"
            raise InvalidValueError(what, "leave batch_norm out")
        if self.dropout and self.network not in WITH_DROPOUT:
            raise InvalidValueError(f"{self.network} has no dropout", "leave it out")
        return self

    def _label_parts(self) -> Iterable[str]:
        yield from (f"{self.network} {self.image_size}px", _part(self.trainable))
        yield _dropout(self.dropout)
        yield "batch norm frozen" if self.batch_norm == "frozen" else ""

    @property
    def depends_on_split(self) -> str:
        """Why the loss curve depends on how ranks split the batch; empty if it must not."""
        reasons = []
        if self.network in WITH_BATCH_NORM and self.batch_norm == "batch":
            reasons.append(BATCH_NORM_BY_RANK)
        if self.network in WITH_DROPOUT and self.dropout != 0:
            reasons.append(DROPOUT_BY_RANK)
        return ", and ".join(reasons)


class PythonModel(Own, _Model):
    """A user's own model: `factory` makes a torch module.

    The module is called with a batch's inputs; `loss`, called with its result and the targets,
    returns the mean loss. Without `loss`, the module is called with inputs and targets and returns
    the mean loss itself. `blocks` names its ModuleList of equal blocks, such as `encoder.layers`,
    which FSDP shards and checkpointing recomputes one by one.
    """

    task: ClassVar[Task] = "its own task"
    entry_points: ClassVar = "lab.models"
    loss: Reference | None = None
    blocks: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*(\.\w+)*$")
    # Only the module itself shows this; a record states what was found in it.
    depends_on_split: ClassVar[str] = "the model's own code decides"

    def _label_parts(self) -> Iterable[str]:
        return self.names


def _sizes(model: _Transformer) -> tuple[str, str]:
    return count(model.heads, "head"), f"{model.block_size} tokens"


def _part(trainable: str | float) -> str:
    if isinstance(trainable, str):
        return "head only" if trainable == "head" else ""
    return f"last {100 * trainable:g} %"


def _dropout(rate: float | None) -> str:
    return "" if rate is None else f"dropout {rate:g}"


def _gpt2(layers: int, heads: int, width: int) -> GPT:
    return GPT(layers=layers, heads=heads, width=width, block_size=1024, vocab_size=50257)


Transformer = GPT | TextClassifier | DistilBERT
Model = Transformer | CNN | PythonModel | Script
MODELS: dict[str, Model] = {
    "gpt-nano": GPT(layers=4, heads=4, width=128, block_size=128),
    "gpt-mini": GPT(layers=6, heads=6, width=384, block_size=256),
    # Radford et al. (2019), table 2; 124M, 355M, 774M and 1558M parameters with the tied embedding.
    "gpt2-small": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
    "agnews-small": TextClassifier(layers=2, heads=4, width=128),
    "agnews-large": TextClassifier(layers=4, heads=8, width=256),
    "distilbert": DistilBERT(),
    **{network: CNN(network=network) for network in SMALLEST_IMAGE},
}
