"""Configurations of data sets, and their names."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from lab.workloads.frozen import Frozen
from lab.workloads.models import Task

_CONTINUED: tuple[Task, ...] = ("language modelling",)
_LABELLED: tuple[Task, ...] = ("text classification",)
_IMAGES: tuple[Task, ...] = ("image classification",)


class _DataSet(Frozen):
    @property
    def label(self) -> str:
        """A short name for people, with all that is not at its default: `synthetic, samples 512`."""
        given = self.model_dump(exclude_defaults=True)
        return ", ".join([str(getattr(self, "kind", "")), *(f"{key.replace('_', ' ')} {value}" for key, value in given.items())])


class Stdlib(_DataSet):
    """The Python sources of the running interpreter: real text that needs no download."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["stdlib"] = "stdlib"
    vocab_size: int = Field(default=4096, ge=300, le=65536)


class Text(_DataSet):
    """The text files below a path: inside the study's folder, or below a folder named in LAB_DATA_PATH."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["text"] = "text"
    path: str = Field(min_length=1)
    vocab_size: int = Field(default=4096, ge=300, le=65536)


class Shakespeare(_DataSet):
    """Tiny Shakespeare, downloaded once, checked by its SHA-256, cached."""

    tasks: ClassVar = _CONTINUED
    kind: Literal["shakespeare"] = "shakespeare"
    vocab_size: int = Field(default=1024, ge=300, le=65536)


class AGNews(_DataSet):
    """AG's news (Zhang et al., 2015): 120000 news items of 4 topics, 7600 held out; downloaded once, checked, cached."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 4
    kind: Literal["ag_news"] = "ag_news"
    vocab_size: int = Field(default=8192, ge=300, le=65536)


class IMDB(_DataSet):
    """Film reviews (Maas et al., 2011): 25000, good or bad, and as many held out; downloaded once, checked, cached."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 2
    kind: Literal["imdb"] = "imdb"
    vocab_size: int = Field(default=8192, ge=300, le=65536)


class Topics(_DataSet):
    """Pieces of the interpreter's own sources; the class is what their module is about. Needs no download."""

    tasks: ClassVar = _LABELLED
    classes: ClassVar = 4
    kind: Literal["topics"] = "topics"
    vocab_size: int = Field(default=4096, ge=300, le=65536)


class MNIST(_DataSet):
    """Handwritten digits (LeCun et al., 1998): 60000 of 28 x 28, 10000 held out; downloaded once, checked, cached."""

    tasks: ClassVar = _IMAGES
    classes: ClassVar = 10
    channels: ClassVar = 1
    kind: Literal["mnist"] = "mnist"


class Digits(_DataSet):
    """scikit-learn's handwritten digits: 1797 of 8 x 8, a tenth held out. Not MNIST; needs no download."""

    tasks: ClassVar = _IMAGES
    classes: ClassVar = 10
    channels: ClassVar = 1
    kind: Literal["digits"] = "digits"


class Synthetic(_DataSet):
    """Random samples for any model, of any size: made from the seed, with something in each class that can be learned.

    `vocab_size` counts for text, `channels` and `image_size` for images, `classes` for both where they are labelled.
    """

    tasks: ClassVar = (*_CONTINUED, *_LABELLED, *_IMAGES)
    kind: Literal["synthetic"] = "synthetic"
    samples: int = Field(default=4096, ge=20, le=100_000_000, description="a tenth is held out")
    vocab_size: int = Field(default=4096, ge=16, le=65536)
    classes: int = Field(default=10, ge=2, le=65536)
    channels: int = Field(default=3, ge=1, le=64)
    image_size: int = Field(default=32, ge=1, le=4096)
    seed: int = Field(default=0, ge=0, le=2**31)


Data = Stdlib | Text | Shakespeare | AGNews | IMDB | Topics | MNIST | Digits | Synthetic
Corpora = Stdlib | Text | Shakespeare
LabelledTexts = AGNews | IMDB | Topics
Images = MNIST | Digits
DATA_KINDS: dict[str, type[Data]] = {
    "stdlib": Stdlib,
    "text": Text,
    "shakespeare": Shakespeare,
    "ag_news": AGNews,
    "imdb": IMDB,
    "topics": Topics,
    "mnist": MNIST,
    "digits": Digits,
    "synthetic": Synthetic,
}
# Text needs a path and has no preset.
DATASETS: dict[str, Data] = {
    "stdlib": Stdlib(),
    "shakespeare": Shakespeare(),
    "ag_news": AGNews(),
    "imdb": IMDB(),
    "topics": Topics(),
    "mnist": MNIST(),
    "digits": Digits(),
    "synthetic": Synthetic(),
}
