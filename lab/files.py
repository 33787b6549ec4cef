"""Small files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node

from lab.errors import InputError, Problem, nearest


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file's content in one step; raises OSError and leaves the old one where it fails.

    `durable` waits until it is on the disk and so survives a power cut, not only the end of the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON object; None where the file is missing or not whole."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


MAX_BYTES = 256 * 1024
MAX_DEPTH = 20


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML without aliases (they can explode), without repeated keys, with YAML 1.2 booleans and floats."""

    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        if self.check_event(AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is not text", problem_mark=key_node.start_mark
                )
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key!r} is given twice", problem_mark=key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if not tag.endswith((":bool", ":float", ":timestamp"))
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf")
)


_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$"),
    list("-+.0123456789"),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping written by a user.

    Raises InputError for a file that is missing, unreadable, too large, not YAML, or not a mapping.
    """
    source = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(
            source,
            [Problem("file", error.strerror or str(error), "check the path and its permissions")],
        ) from None
    if len(raw) > MAX_BYTES:
        raise InputError(
            source,
            [
                Problem(
                    "file", f"larger than {MAX_BYTES // 1024} KiB", "this is no study or profile"
                )
            ],
        )
    try:
        # The loader extends SafeLoader: it builds plain values only.
        content = yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506
    except UnicodeDecodeError:
        raise InputError(source, [Problem("file", "not UTF-8 text", "save it as UTF-8")]) from None
    except yaml.YAMLError as error:
        raise InputError(source, [_yaml_problem(error)]) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            source, [Problem("file", f"not usable as YAML: {error}", "mend the value")]
        ) from None
    if not isinstance(content, dict):
        found = "empty" if content is None else f"a {type(content).__name__}"
        raise InputError(
            source,
            [
                Problem(
                    "file",
                    f"a mapping of keys is needed, found {found}",
                    "write `key: value` lines",
                )
            ],
        )
    return content


def _yaml_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Problem(where, str(what), "mend the YAML here")


def unknown_keys(
    given: Mapping[str, Any], allowed: Iterable[str], where: str = ""
) -> list[Problem]:
    """One problem for each key that is not allowed, with the nearest key that is."""
    names = set(allowed)
    return [
        Problem(f"{where}{key}", "unknown key", nearest(key, names))
        for key in given
        if key not in names
    ]


def problems_of(
    error: ValidationError, model: type[BaseModel], tags: Mapping[str, type[BaseModel] | None]
) -> list[tuple[str, Problem]]:
    """Pydantic's errors as (top-level field, Problem with its path).

    `tags` are the union tags that pydantic puts into the path, each with the model that it stands for.
    """
    found = []
    for item in error.errors(include_url=False):
        beside = next(
            (
                tags[part]
                for part in reversed(item["loc"][:-1])
                if isinstance(part, str) and tags.get(part)
            ),
            None,
        )
        loc = [part for part in item["loc"] if part not in tags]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(
            "."
        )
        found.append(
            (str(loc[0]) if loc else "", _problem(path, item, beside or _inner(model, item["loc"])))
        )
    return found


def _inner(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """The model whose field a path ends at: one inside the other, as far as fields hold one model each."""
    for part in path[:-1]:
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        held = [
            one
            for one in (kind, *get_args(kind))
            if isinstance(one, type) and issubclass(one, BaseModel)
        ]
        model = held[0] if len(held) == 1 else model
    return model


def _problem(path: str, item: Any, beside: type[BaseModel]) -> Problem:
    kind, value, context = item["type"], item.get("input"), item.get("ctx", {})
    if kind == "extra_forbidden":
        return Problem(path, "unknown key", nearest(path.rsplit(".", 1)[-1], beside.model_fields))
    if kind == "missing":
        return Problem(path, "missing", "give it a value")
    if kind in {"literal_error", "union_tag_invalid"}:
        expected = re.findall(
            r"'([^']*)'", str(context.get("expected", context.get("expected_tags", "")))
        )
        expected = [name for name in expected if name != "name"]
        return Problem(path, f"{value!r} is not a choice", nearest(str(value), expected))
    if kind == "value_error":
        what, _, advice = str(context["error"]).partition(" || ")
        return Problem(path, what, advice)
    return Problem(path, f"{item['msg'][0].lower()}{item['msg'][1:]}, found {value!r}")


ROOT = Path(__file__).resolve().parent.parent
