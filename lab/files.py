"""Small files: atomic writes, JSON, and YAML written by people."""

from __future__ import annotations

import copy
import errno
import json
import os
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node

from lab.errors import InputError, Problem, nearest

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
# Notebooks, profiles and studies lie beside the package in a checkout, in it once installed.
SHARED = ROOT if (ROOT / "notebooks").is_dir() else PACKAGE / "share"
# A user's own profiles, and the calibrations of those that come with the package.
_CONFIG = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
USER = Path(os.path.expanduser(_CONFIG)) / "scaling-lab"  # noqa: PTH111 Path's raises for ~nobody
MAX_BYTES = 256 * 1024
MAX_DEPTH = 20


def source_date() -> int | None:
    """The date of files in seconds since 1970, if SOURCE_DATE_EPOCH gives one; else InputError."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if text and not re.fullmatch("[0-9]{1,11}", text):
        what = f"{text!r} is not a number of seconds since 1970"
        raise InputError.of("environment", "SOURCE_DATE_EPOCH", what, "correct or unset it")
    return int(text) if text else None


def write_atomically(
    path: Path, content: bytes, *, durable: bool = True, mode: int = 0o666
) -> None:
    """Replace a file's content in one step, or raise OSError and leave the old content.

    `durable` waits until it is on disk, so that it survives a power cut, not only the process.
    `mode` is the most permissive mode, which the umask restricts.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # which is more helpful than the temporary name
        raise


@contextmanager
def whole_folder(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a folder to fill that then takes the place of `path`, which is complete or absent.

    `durable` is that of `write_atomically`. One process at a time may do this for a path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{path.name}.*"):  # from a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    # Beside it, because a folder can be renamed only within one file system.
    building = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    yield building
    # Contents reach the disk before the name, so the name stands for them even after a power cut.
    for part in (*building.iterdir(), building) if durable else ():
        _flush(part)
    replaced = path.with_name(f".{path.name}.old")
    if path.exists():  # a folder cannot replace another in one step
        path.rename(replaced)
    building.rename(path)
    if durable:
        _flush(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def unwritable(out: Path) -> list[Problem]:
    """Why a folder, which is created if missing, cannot be written to; empty if it can."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / f".writable-{os.getpid()}-{threading.get_ident()}"
        probe.touch()
        probe.unlink()
    except (FileExistsError, NotADirectoryError):
        return [Problem(str(out), "is not a folder", "rename or remove it, or name another folder")]
    except OSError as error:
        advice = "make the folder writable, or work on a copy elsewhere"
        if error.errno == errno.ENAMETOOLONG:
            advice = "choose a shorter name"
        return [Problem(str(out), f"cannot be written: {error.strerror}", advice)]
    return []


def read_file(path: Path) -> bytes:
    """The content of a file; OSError for a pipe or device, whose readers could wait forever."""
    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return stream.read()


def read_json(path: Path) -> dict[str, Any] | None:
    """A small JSON object; None if the file is missing or incomplete."""
    try:
        content = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


# For files through which a user's processes communicate; others may read them if the umask allows.
OWN_MODE = 0o644


def read_own(path: Path) -> bytes:
    """The content of a file that this user wrote and nobody else can have changed.

    Such files are acted upon: processes are ended, addresses contacted. Raises InputError if
    another user may have written it, OSError if it cannot be read.
    """
    with open(path, "rb", opener=open_no_link) as stream:
        _require_own(path, os.fstat(stream.fileno()), others=0o022)
        return stream.read()


def open_no_link(name: str, flags: int) -> int:
    """An opener for files that another user could have replaced by a link, or by a pipe."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def private_folder(path: Path) -> Path:
    """Make a folder that only this user may open; raises InputError if it is another's."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = path.lstat()
    _require_own(path, state)
    if state.st_mode & 0o077:
        path.chmod(0o700)
    return path


def _require_own(path: Path, state: os.stat_result, *, others: int = 0, root: bool = False) -> None:
    """Raise InputError for a path that another user owns or to which `others` have access."""
    if stat.S_ISLNK(state.st_mode):
        what = "a link"
    elif state.st_uid != os.geteuid() and not (root and state.st_uid == 0):
        what = f"it belongs to {login(state.st_uid)}"
    elif state.st_mode & others:
        what = "other users may write to it"
    else:
        return
    advice = "remove it, or copy the study to a folder of your own"
    raise InputError.of(path, "owner", what, advice)


def require_own_path(folder: Path) -> None:
    """Raise InputError if a user other than root may put something else in a folder's place."""
    for place in (folder, *folder.resolve().parents):
        state = place.stat()
        if state.st_uid == 0 and state.st_mode & stat.S_ISVTX:
            continue  # like /tmp, where nobody can move another user's files
        _require_own(place, state, others=0o022, root=True)


def login(uid: int) -> str:
    """The name of a user, or the number of one that this machine does not know."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def unreadable(path: Path, error: Exception) -> InputError:
    """The error for a user's file that could not be read, with the nearest file in its folder."""
    advice = "check the path and its permissions"
    if isinstance(error, FileNotFoundError):
        with suppress(OSError):
            beside = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
            near = nearest(path.name, beside)
            advice = near if near.startswith("did you mean") else advice
    what = getattr(error, "strerror", None) or str(error)
    return InputError.of(path, "file", what, advice)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping written by a user.

    Raises InputError for a file that is missing, unreadable, too large, not YAML, or not a mapping.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            what = f"larger than {MAX_BYTES // 1024} KiB"
            raise InputError.of(path, "file", what, "give a study or a profile")
        content = copy.deepcopy(_parsed(raw))
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        problem = Problem("file", "not UTF-8 text", "save it as UTF-8")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"
        what = str(error.problem)
        advice = (advice for words, advice in YAML_ADVICE.items() if words in what)
        problem = Problem(where, what, next(advice, "correct the YAML here"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        what = f"cannot be read as YAML: {str(error).splitlines()[0]}"
        problem = Problem("file", what, "correct the value")
    else:
        if isinstance(content, dict):
            return content
        kind = {type(None): "nothing", list: "a list", str: "text"}.get(type(content), "a value")
        what = f"expected a mapping of keys, found {kind}"
        problem = Problem("file", what, "write `key: value` lines")
    raise InputError(str(path), [problem])


# Words of the parser's problems, and what people did who meet them.
YAML_ADVICE = {
    r"character '\t'": "write spaces instead of the tab",
    "cannot start any token": "put the text in quotes",
    "mapping values are not allowed": "check the indentation, and the space after each colon; "
    "put text with a colon in quotes",
    "could not find expected ':'": "write `key: value`, with a space after the colon",
    "expected <block end>": "indent the keys of a mapping alike, and the items of a list",
}


@lru_cache(maxsize=64)  # profiles and studies are read again and again
def _parsed(raw: bytes) -> Any:
    # The loader extends SafeLoader, so it builds only plain values.
    return yaml.load(raw.decode("utf-8"), Loader=_StrictLoader)  # noqa: S506


class _StrictLoader(yaml.SafeLoader):
    """Safe YAML 1.2 without repeated keys, tags and aliases, as aliases can expand to any size."""

    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark = event.start_mark
        if self.check_event(AliasEvent):
            raise yaml.MarkedYAMLError(problem="aliases (*name) are not allowed", problem_mark=mark)
        if event.tag is not None:
            problem = f"tags are not allowed, such as {event.tag!r} here"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
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
                fault = "repeated" if isinstance(key, str) else "not text"
                problem = f"the key {key!r} is {fault}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads `no` as false, `017` as 15, `1:30` as 90, `1e-3` as text, and dates as such.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"^(?:true|false)$", "tf"),
    ("int", r"^[-+]?(?:0|[1-9]\d{0,17})$", "-+0123456789"),
    ("float", r"^[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?$", "-+.0123456789"),
):
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)
