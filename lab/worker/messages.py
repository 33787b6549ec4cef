"""Messages between ranks as bytes: JSON with arrays and the lab's own types, no pickle."""

from __future__ import annotations

import base64
import dataclasses
import json
import sys
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

_PLAIN = (bool, int, float, str, type(None))
_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple}


def encode(value: Any) -> bytes:
    """A value as bytes.

    It may hold numbers, text, None, lists, tuples, dictionaries, arrays, tensors, and instances of
    the lab's dataclasses, named tuples and pydantic models; raises TypeError for anything else.
    Tensors arrive in main memory.
    """
    return json.dumps(_tagged(value), separators=(",", ":")).encode()


def decode(content: bytes) -> Any:
    """The value passed to `encode`; raises TypeError for anything that `encode` does not take."""
    return _untagged(json.loads(content))


def _tagged(value: Any) -> Any:
    """Plain values unchanged, others as a list of their constructor and parts."""
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return ["tensor", _tagged(value.detach().cpu().numpy())]
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return ["array", value.dtype.str, value.shape, data]
    if type(value) is dict:
        return ["dict", *([_tagged(key), _tagged(one)] for key, one in value.items())]
    if type(value) in _SEQUENCES.values():
        return [type(value).__name__, *map(_tagged, value)]
    names = _fields(type(value))
    fields = {name: _tagged(getattr(value, name)) for name in names}
    return [f"{type(value).__module__}:{type(value).__qualname__}", fields]


def _untagged(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    tag, *parts = content
    if tag == "tensor":
        return torch.from_numpy(_untagged(parts[0]))
    if tag == "array":
        dtype, shape, data = parts
        return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()
    if tag == "dict":
        return {_untagged(key): _untagged(value) for key, value in parts}
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](map(_untagged, parts))
    module, _, name = tag.partition(":")
    kind: Any = getattr(sys.modules.get(module), name, None)
    _fields(kind)
    return kind(**{name: _untagged(value) for name, value in parts[0].items()})


def _fields(kind: Any) -> list[str]:
    """The fields of one of the lab's plain data types; raises TypeError for any other type."""
    if isinstance(kind, type) and kind.__module__.split(".")[0] == "lab":
        if dataclasses.is_dataclass(kind):
            return [field.name for field in dataclasses.fields(kind)]
        if issubclass(kind, BaseModel):
            return list(kind.model_fields)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return list(kind._fields)
    raise TypeError(f"ranks do not send each other {kind!r}")
