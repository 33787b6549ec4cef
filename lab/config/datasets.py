"""Configurations of data sets, and their names."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag

from lab.config.base import Frozen, InvalidValueError, one_of
from lab.config.models import CNN, GPT, MODELS, DistilBERT, Model, PythonModel, Task
from lab.config.own import Own
from lab.errors import nearest

VocabSize = Annotated[int, Field(ge=300, le=65536)]
_CONTINUED: tuple[Task, ...] = ("language modelling",)
_LABELLED: tuple[Task, ...] = ("text classification",)
_IMAGES: tuple[Task, ...] = ("image classification",)


class _DataSet(Frozen):
    @property
    def label(self) -> str:
        """A short name with all non-default values: `synthetic, samples 512`."""
        changes = self.model_dump(exclude_defaults=True)
        settings = [f"{key.replace('_', ' ')} {value}" for key, value in changes.items()]
        return ", ".join([getattr(self, "kind", ""), *settings])


class Stdlib(_DataSet):
    """The Python sources of the running interpreter: real text that needs no download."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["stdlib"] = "stdlib"
    vocab_size: VocabSize = 4096


class Text(_DataSet):
    """The text files below a path, in the study's folder or one named in LAB_DATA_PATH."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["text"] = "text"
    path: str = Field(min_length=1)
    vocab_size: VocabSize = 4096


class Shakespeare(_DataSet):
    """Tiny Shakespeare, downloaded once, checked by its SHA-256, cached."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["shakespeare"] = "shakespeare"
    vocab_size: VocabSize = 1024


class AGNews(_DataSet):
    """AG's news (Zhang et al., 2015): 120000 of 4 topics, 7600 held out; downloaded once."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 4
    kind: Literal["ag_news"] = "ag_news"
    vocab_size: VocabSize = 8192


class IMDB(_DataSet):
    """Film reviews (Maas et al., 2011): 25000, and as many held out; downloaded once."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 2
    kind: Literal["imdb"] = "imdb"
    vocab_size: VocabSize = 8192


class Topics(_DataSet):
    """Pieces of the interpreter's sources, labelled with their module's topic; no download."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 4
    kind: Literal["topics"] = "topics"
    vocab_size: VocabSize = 4096


class MNIST(_DataSet):
    """Handwritten digits (LeCun et al., 1998): 60000 of 28 x 28, 10000 held out; downloaded."""

    tasks: ClassVar = _IMAGES
    classes: ClassVar = 10
    channels: ClassVar = 1
    kind: Literal["mnist"] = "mnist"


class Digits(_DataSet):
    """scikit-learn's handwritten digits, not MNIST: 1797 of 8 x 8, a tenth held out."""

    tasks: ClassVar = _IMAGES
    classes: ClassVar = 10
    channels: ClassVar = 1
    kind: Literal["digits"] = "digits"


class Synthetic(_DataSet):
    """Random samples for any model, made from the seed, with something to learn in each class.

    `vocab_size` applies to text, `channels` and `image_size` to images, `classes` to labelled
    samples.
    """

    tasks: ClassVar = (*_CONTINUED, *_LABELLED, *_IMAGES)
    kind: Literal["synthetic"] = "synthetic"
    samples: int = Field(default=4096, ge=20, le=100_000_000)  # a tenth is held out
    vocab_size: int = Field(default=4096, ge=16, le=65536)
    classes: int = Field(default=10, ge=2, le=65536)
    channels: int = Field(default=3, ge=1, le=64)
    image_size: int = Field(default=32, ge=1, le=4096)
    seed: int = Field(default=0, ge=0, le=2**31)


class PythonData(Own, _DataSet):
    """A user's own data: `factory` returns two torch data sets, for training and held out.

    Each item is a pair of tensors, arrays or numbers: an input and a target. A factory with a
    parameter `seed` gets the run's seed.
    """

    tasks: ClassVar = ("its own task",)
    entry_points: ClassVar = "lab.data"
    offered: ClassVar = ("seed",)

    @property
    def label(self) -> str:
        """A short name: `build_data, size 64`."""
        return ", ".join(self.names)


class ScriptData(_DataSet):
    """The data that a script trains on, which only the script knows."""

    tasks: ClassVar = ("its own task",)
    kind: Literal["script"] = "script"


Data = (
    Stdlib
    | Text
    | Shakespeare
    | AGNews
    | IMDB
    | Topics
    | MNIST
    | Digits
    | Synthetic
    | PythonData
    | ScriptData
)
Corpora = Stdlib | Text | Shakespeare
LabelledTexts = AGNews | IMDB | Topics
Images = MNIST | Digits
# By name; data sets that need a path or a factory have none.
DATASETS: dict[str, Data] = {
    kind.model_fields["kind"].default: kind()
    for kind in get_args(Data)
    if kind not in (Text, PythonData, ScriptData)
}


def _from_preset(content: Any) -> Any:
    """A mapping with `preset: NAME` is that preset with the other keys changed."""
    if isinstance(content, str) and content not in MODELS:
        return PythonModel.resolved(content)
    if not isinstance(content, dict) or "preset" not in content:
        return content
    preset = content["preset"]
    if str(preset) not in MODELS:
        raise InvalidValueError(f"unknown model preset {preset!r}", nearest(str(preset), MODELS))
    changes = {key: value for key, value in content.items() if key != "preset"}
    return MODELS[preset].model_dump() | changes


_named = Discriminator(lambda value: "a name" if isinstance(value, str) else "one of the kinds")
ModelField = Annotated[
    Annotated[str, one_of("model preset", MODELS), Tag("a name")]
    | Annotated[Annotated[Model, Field(discriminator="kind")], Tag("one of the kinds")],
    _named,
    BeforeValidator(_from_preset),
]
DataField = Annotated[
    Annotated[str, one_of("data set", DATASETS), Tag("a name")]
    | Annotated[Annotated[Data, Field(discriminator="kind")], Tag("one of the kinds")],
    _named,
    # In a list, as a mapping cannot be hashed.
    BeforeValidator(lambda name: name if name in [*DATASETS] else PythonData.resolved(name)),
]


def vocab_size_of(model: Model, data: Data) -> int:
    """The model's own vocabulary size if it has one, else the data's; 0 for images."""
    if isinstance(model, CNN):
        return 0
    own = model.vocab_size if isinstance(model, GPT | DistilBERT) else None
    return own or int(getattr(data, "vocab_size", 0))


def misfit(model: Model, data: Data) -> tuple[str, str] | None:
    """Why a model cannot be trained on a data set, and what fits; None if it can."""
    if _fits(model, data):
        return None
    own = ["your own (kind: python)"]
    others = [name for name, other in DATASETS.items() if _fits(model, other)]
    others += own if isinstance(model, PythonModel) else []
    models = [name for name, other in MODELS.items() if _fits(other, data)]
    models += own if _fits(_ANY_MODEL, data) else []
    return (
        f"{model.label} does {model.task}, but data '{data.kind}' is for {' or '.join(data.tasks)}",
        f"data that fits: {', '.join(others)}; models that fit: {', '.join(models)}",
    )


_ANY_MODEL = PythonModel(factory="any:Model")


def _fits(model: Model, data: Data) -> bool:
    # The lab's texts are cut to a model's length; images suit any model that takes them.
    return model.task in data.tasks or (isinstance(model, PythonModel) and data.tasks == _IMAGES)
