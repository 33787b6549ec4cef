"""What all configurations share: strict immutable models and readable errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from lab.errors import Problem, nearest

Quantization = Literal[
    "none", "bf16", "int8_dynamic", "int8_weight_only", "int4_weight_only", "fp8"
]
Counts = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1_000_000)], ...],
    Field(strict=False, min_length=1, max_length=20),
]


def _one_line(text: str) -> str:
    """Text with single spaces; raises InvalidValueError if it is empty or cannot be printed."""
    words = " ".join(text.split())
    if not words.isprintable():
        raise InvalidValueError(f"{text!r} has characters that cannot be printed", "leave them out")
    if not words:
        raise InvalidValueError("empty", "give it a value")
    return words


# Text that readers see, as in the titles of reports.
Words = Annotated[str, AfterValidator(_one_line)]

# What to write instead of a value of the wrong type, by pydantic's error types.
LIST = "write values in brackets, such as [1, 2]"
TYPE_ADVICE = {
    **dict.fromkeys(("int_type", "int_from_float"), "write a whole number"),
    "float_type": "write a number",
    "bool_type": "write true or false",
    "string_type": "write it in quotes",
    **dict.fromkeys(("list_type", "tuple_type"), LIST),
    "dict_type": "write `key: value` lines below it",
}
# Text that would be right without its quotes, by the same types.
QUOTED = {
    "int_type": r"[-+]?(0|[1-9]\d{0,17})",
    "float_type": r"[-+]?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?",
    "bool_type": r"true|false",
}


class Frozen(BaseModel):
    """A strict, immutable configuration without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class InvalidValueError(ValueError):
    """Raised by validators: what is wrong with a value and what to do about it, perhaps `more`."""

    def __init__(self, what: str, advice: str = "", *more: tuple[str, str]) -> None:
        self.faults = [(what, advice), *more]
        super().__init__(". ".join(f"{one}; {do}" if do else one for one, do in self.faults))


def one_of(noun: str, choices: Mapping[str, Any]) -> AfterValidator:
    """A validator of names: `unknown strategy 'dpd'; did you mean 'ddp'?`."""

    return AfterValidator(lambda name: check_name(noun, name, choices))


def check_name(noun: str, name: str, choices: Mapping[str, Any]) -> str:
    """The name, if it is one of the choices; raises InvalidValueError with the nearest one."""
    if name not in choices:
        raise InvalidValueError(f"unknown {noun} {name!r}", nearest(name, choices))
    return name


def unknown_keys(
    content: Mapping[str, Any], allowed: Iterable[str], where: str = ""
) -> list[Problem]:
    """One problem for each key that is not allowed, with the nearest allowed key."""
    names = set(allowed)
    unknown = [key for key in content if key not in names]
    return [Problem(f"{where}{key}", "unknown key", nearest(key, names)) for key in unknown]


def problems_of(
    error: ValidationError, model: type[BaseModel], content: Any
) -> list[tuple[str, Problem]]:
    """Pydantic's errors about `content`: the top-level field and the problem with its path."""
    problems = []
    for item in error.errors(include_url=False):
        path, owner = _locate(item["loc"], item["type"], model, content)
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
        field, where = str(path[0]) if path else "", where.removeprefix(".")
        fault = item.get("ctx", {}).get("error")
        if isinstance(fault, InvalidValueError):
            problems += [(field, Problem(where, what, advice)) for what, advice in fault.faults]
        else:
            problems.append((field, _problem(where, item, owner)))
    return problems


def _locate(
    loc: tuple[int | str, ...], kind: str, model: type[BaseModel], content: Any
) -> tuple[list[int | str], type[BaseModel]]:
    """The path in the content, without the tags of unions, and the model that it ends in."""
    path: list[int | str] = []
    inside = [model]
    for place, part in enumerate(loc):
        last = place == len(loc) - 1
        keys = content if isinstance(content, dict) else {}
        field = inside[0].model_fields.get(str(part))
        if part in keys or field is not None or (kind == "missing" and last):
            path.append(part)
            content = keys.get(part)
            if field is not None and not last:
                inside = _models_in(field.annotation) or inside
        elif isinstance(part, int):
            path.append(part)
            content = content[part] if isinstance(content, list | tuple) else None
        else:  # a tag that selects one of several models
            inside = [one for one in inside if _kind(one) == part] or inside
    return path, inside[0]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _kind(model: type[BaseModel]) -> Any:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


def _problem(path: str, item: Any, owner: type[BaseModel]) -> Problem:
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return Problem(path, "unknown key", nearest(path.split(".")[-1], owner.model_fields))
        case "missing":
            return Problem(path, "missing", "give it a value")
        case "union_tag_not_found":
            return Problem(f"{path}.kind", "missing", "give it a value")
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return Problem(path, f"unknown value {value!r}", nearest(str(value), choices))
        case "union_tag_invalid":
            choices = re.findall(r"'([^']*)'", context["expected_tags"])
            what = f"unknown kind {context['tag']!r}"
            return Problem(f"{path}.kind", what, nearest(context["tag"], choices))
        case "too_short":  # every list that has a least length needs one value
            return Problem(path, "empty", "give it a value")
        case "too_long":
            what = f"lists {context['actual_length']} values"
            return Problem(path, what, f"at most {context['max_length']} are possible")
        case "model_attributes_type" if value is not None:
            what = f"neither a name nor a mapping, found {value!r}"
            return Problem(path, what, "give its `kind`")
    message = item["msg"].replace("tuple", "list").replace("dictionary", "mapping")  # as in YAML
    what = f"{message[0].lower()}{message[1:]}, found {value!r}"
    advice = "give it a value" if value is None else TYPE_ADVICE.get(kind, "")
    if isinstance(value, list | dict) and kind == "string_type":
        advice = "write a single value"
    if isinstance(value, str) and kind in QUOTED and re.fullmatch(QUOTED[kind], value):
        advice = "leave out the quotes"
    return Problem(path, what, advice)
