"""What can be trained: configurations of models and data sets, and their named presets."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from lab.errors import nearest


class Frozen(BaseModel):
    """A strict, immutable configuration without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GPT(Frozen):
    """A decoder-only transformer; `vocab_size` follows the data's tokenizer where it is not given."""

    kind: Literal["gpt"] = "gpt"
    layers: int = Field(ge=1, le=1000)
    heads: int = Field(ge=1, le=1024)
    width: int = Field(ge=1, le=65536)
    block_size: int = Field(ge=2, le=1_048_576, description="tokens per sample")
    vocab_size: int | None = Field(default=None, ge=2, le=10_000_000)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}")
        return self


class Stdlib(Frozen):
    """The Python sources of the running interpreter: real text that needs no download."""

    kind: Literal["stdlib"] = "stdlib"
    vocab_size: int = Field(default=4096, ge=300, le=65536)


class Text(Frozen):
    """The text files below a path: inside the study's folder, or below a folder named in LAB_DATA_PATH."""

    kind: Literal["text"] = "text"
    path: str = Field(min_length=1)
    vocab_size: int = Field(default=4096, ge=300, le=65536)


class Shakespeare(Frozen):
    """Tiny Shakespeare, downloaded once, checked by its SHA-256, cached."""

    kind: Literal["shakespeare"] = "shakespeare"
    vocab_size: int = Field(default=1024, ge=300, le=65536)


MODELS: dict[str, GPT] = {
    "gpt-nano": GPT(layers=4, heads=4, width=128, block_size=128),
    "gpt-mini": GPT(layers=6, heads=6, width=384, block_size=256),
    # GPT-2 small: Radford et al. (2019), table 2; 124M parameters with the tied embedding.
    "gpt2-small": GPT(layers=12, heads=12, width=768, block_size=1024, vocab_size=50257),
}
DATASETS: dict[str, Stdlib | Shakespeare] = {"stdlib": Stdlib(), "shakespeare": Shakespeare()}
TAGS: dict[str, type[BaseModel] | None] = {"name": None, "gpt": GPT, "stdlib": Stdlib, "text": Text, "shakespeare": Shakespeare}


def _one_of(names: dict[str, Any], what: str) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"{name!r} is no {what} || {nearest(name, names)}")
        return name

    return AfterValidator(check)


def _tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return str(kind) if kind is not None else None


ModelField = Annotated[
    Annotated[str, _one_of(MODELS, "model preset"), Tag("name")] | Annotated[GPT, Tag("gpt")],
    Discriminator(_tag),
]
DataField = Annotated[
    Annotated[str, _one_of(DATASETS, "data set"), Tag("name")]
    | Annotated[Stdlib, Tag("stdlib")]
    | Annotated[Text, Tag("text")]
    | Annotated[Shakespeare, Tag("shakespeare")],
    Discriminator(_tag),
]


def model_of(model: str | GPT) -> GPT:
    """The configuration behind a preset's name, or the configuration itself."""
    return MODELS[model] if isinstance(model, str) else model


def data_of(data: str | Stdlib | Text | Shakespeare) -> Stdlib | Text | Shakespeare:
    """The configuration behind a data set's name, or the configuration itself."""
    return DATASETS[data] if isinstance(data, str) else data
