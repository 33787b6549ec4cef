"""Small files: written whole or not at all, JSON, and the YAML that people write."""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node

from lab.errors import InputError, Problem

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
# Notebooks, profiles and studies: beside the package in a checkout, within it once installed.
SHARED = ROOT if (ROOT / "notebooks").is_dir() else PACKAGE / "share"
# A user's own profiles, and the calibrations of those that the package brings along.
USER = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "scaling-lab"
MAX_BYTES = 256 * 1024
MAX_DEPTH = 20


def write_atomically(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file's content in one step, or raise OSError and leave the old content.

    `durable` waits until it is on the disk, so that it survives a power cut, not only the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # Opened as any new file, so that the umask decides who may read it; tempfile's are private.
        with partial.open("xb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON object; None where the file is missing or not whole."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping written by a user.

    Raises InputError for a file that is missing, unreadable, too large, not YAML, or not a mapping.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            what = f"larger than {MAX_BYTES // 1024} KiB"
            raise InputError(str(path), [Problem("file", what, "give a study or a profile")])
        # The loader extends SafeLoader: it builds plain values only.
        content = yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506
    except OSError as error:
        what = error.strerror or str(error)
        problem = Problem("file", what, "check the path and its permissions")
    except UnicodeDecodeError:
        problem = Problem("file", "not UTF-8 text", "save it as UTF-8")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        problem = Problem(where, str(error.problem), "correct the YAML here")
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"cannot be read as YAML: {str(error).splitlines()[0]}"
        problem = Problem("file", what, "correct the value")
    else:
        if isinstance(content, dict):
            return content
        kind = "nothing" if content is None else f"a {type(content).__name__}"
        what = f"expected a mapping of keys, found {kind}"
        problem = Problem("file", what, "write `key: value` lines")
    raise InputError(str(path), [problem])


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML 1.2 without repeated keys, and without aliases, which can expand to any size."""

    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self.check_event(AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str) or key in keys:
                problem = f"the key {key!r} is {'repeated' if key in keys else 'not text'}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads `no` as false, `1e-3` as text, and dates as such.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag.endswith((":int", ":null", ":merge"))]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|false)$", "tf"),
    ("float", r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$", "-+.0123456789"),
):
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
