"""`lab.check_ranks`: run a learner's file on real ranks, and judge the result.

A rung of the ladder needs little beyond torch and arithmetic, so a file is refused before it runs,
with the line, if it uses more. A check with real processes counts inside these processes, and code
that rewrites the counter could fake the count. This is the first barrier, not the only one:
`lab.worker.confine` contains what passes.
"""

from __future__ import annotations

import ast
import io
import json
import secrets
import tempfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from lab.course.check import WrongAnswerError, require
from lab.course.ladder import CARRIED, INSTANCES, RUNGS, Evidence, Rung, Trial
from lab.course.language import tr
from lab.errors import InputError, LabError, nearest, require_type
from lab.files import read_json, write_atomically
from lab.launch.confined import Ended, line_in, run_ranks
from lab.perfmodel.collectives import bus_factor
from lab.worker import confine

MODULES = frozenset(
    (
        *("torch", "torch.nn", "torch.nn.functional", "torch.distributed", "torch.autograd"),
        *("math", "collections", "collections.abc", "contextlib", "dataclasses", "functools"),
        *("itertools", "typing", "__future__"),
        *("lab.worker.strategies.base", "lab.config.run"),
    )
)
# Attributes of any object; for a module also all that begin with an underscore.
REFUSED_PARTS = frozenset(
    (
        *("distributed_c10d", "c10d_logger", "ProcessGroup", "Work", "rpc", "elastic", "launcher"),
        *("os", "sys", "modules", "importlib", "inspect", "threading", "warnings", "types"),
        *("hub", "jit", "library", "load", "save", "multiprocessing", "ops", "overrides"),
        *("package", "parallel", "serialization", "classes", "compile", "utils"),
        *("functional_collectives", "clock", "gi_frame", "f_globals", "tb_frame"),
        *("recorder", "records", "Recorder", "CallRecorder", "BucketRecorder"),
    )
)
REFUSED_NAMES = frozenset(
    (
        *("eval", "exec", "compile", "open", "globals", "locals", "vars", "breakpoint", "input"),
        *("getattr", "setattr", "delattr", "__import__", "__builtins__", "__loader__", "__spec__"),
    )
)
PERMITTED_PARTS = frozenset({"__init__", "__name__", "__call__"})
LARGEST_FILE = 50_000  # characters
LIMIT_S = 30.0  # for all steps of a file; they take less than one second on an idle machine
LARGEST_WORLD = 8
TRIES = ".tries.json"  # beside the file


class _NotRunError(WrongAnswerError):
    """A file that cannot be run, such as one with a syntax error: hints of its rung do not help."""


def forbidden(text: str) -> list[str]:
    """What a file may not use, each with its line; empty if it may run."""
    if len(text) > LARGEST_FILE:
        return [
            tr(
                "the file has {characters} characters; {most} are more than a rung needs",
                characters=len(text),
                most=LARGEST_FILE,
            )
        ]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, what = getattr(error, "lineno", None) or 1, f"{type(error).__name__}: {error.args[0]}"
        return [tr("line {line}: {what}", line=line, what=what)]
    imports = dict(_imports(tree))
    modules = {name for name, is_module in imports.items() if is_module}
    parents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    problems = set()
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        problems |= {(line, what) for what in _problems_of(node, modules, imports)}
        # Under another name it could be changed undetected.
        if isinstance(node, ast.Name) and node.id in modules and id(node) not in parents:
            what = tr("uses {name} by itself, where one of its functions is needed", name=node.id)
            problems.add((line, what))
    return [tr("line {line}: {what}", line=line, what=what) for line, what in sorted(problems)]


def _imports(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names that the file imports, and whether each stands for a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else ""
                yield (alias.asname or alias.name).split(".")[0], not whole or whole in MODULES


def _problems_of(node: ast.AST, modules: Container[str], imports: Container[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in MODULES:
                yield tr("imports {name}, which no rung needs", name=alias.name)
    elif isinstance(node, ast.ImportFrom):
        if node.level or node.module not in MODULES:
            module = f"{'.' * node.level}{node.module or ''}"
            yield tr("imports from {name}, which no rung needs", name=module)
        for alias in node.names:
            if alias.name == "*" or _is_refused(alias.name, of_module=True):
                yield tr("imports {name}, which no rung needs", name=alias.name)
    elif isinstance(node, ast.Name):
        if node.id in REFUSED_NAMES or (node.id.startswith("__") and node.id != "__name__"):
            yield tr("uses {name}, which no rung needs", name=node.id)
    elif isinstance(node, ast.Attribute):
        of_module = _root(node) in modules
        if _is_refused(node.attr, of_module=of_module):
            yield tr("uses {name}, which no rung needs", name=ast.unparse(node))
        elif _root(node) in imports and not isinstance(node.ctx, ast.Load):
            yield tr("changes {name}, which belongs to somebody else", name=ast.unparse(node))


def _is_refused(name: str, *, of_module: bool) -> bool:
    if name.startswith("__"):
        return name not in PERMITTED_PARTS
    return name in REFUSED_PARTS or (of_module and name.startswith("_"))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@dataclass(frozen=True)
class Verdict:
    """The result for a right file: a sentence, and its step time beside the lab's, in s."""

    sentence: str
    step_s: float
    lab_step_s: float | None


def check_ranks(name: str, *, file: str | Path, world_size: int = 2) -> None:
    """Run a file on ranks of this machine over gloo, and judge it by the criteria of rung `name`.

    The file is confined: it may not start processes, write files or open connections, and has half
    a minute. Raises WrongAnswerError, an AssertionError, with what the ranks did and a hint;
    InputError for an unknown rung, a missing file, or a world size outside 2 to 8; LabError if this
    machine cannot confine the file.
    """
    from IPython.display import display

    from lab.report.blocks import Markdown

    rung, path = _rung(name, world_size), Path(file)
    if not path.is_file():
        raise InputError.of("check_ranks", "file", f"no file {file}", f"write {rung.file}")
    try:
        text = path.read_text("utf-8", errors="replace")
        verdict = judge(name, text, path=path, world_size=world_size, timed=True)
    except WrongAnswerError as error:
        hint = str(error)
        if not isinstance(error, _NotRunError):
            hints = [*rung.questions, rung.formula]
            message = hints[min(_count(path, name), len(hints)) - 1]
            hint += f" {tr(message)}"
        raise WrongAnswerError(tr("{name}: not yet. {hint}", name=name, hint=hint)) from None
    meaning = verdict.sentence
    if verdict.lab_step_s is not None:
        times = tr(
            "A step takes {step:.2f} ms; with the lab's own code it takes {own:.2f} ms.",
            step=1e3 * verdict.step_s,
            own=1e3 * verdict.lab_step_s,
        )
        meaning = f"{meaning} {times}"
    shown = tr("{name}: right. {meaning}", name=name, meaning=meaning)
    display(Markdown.of(shown))


def judge(
    name: str,
    text: str,
    *,
    path: Path,
    world_size: int,
    seed: Sequence[int] | None = None,
    timed: bool = False,
) -> Verdict:
    """The verdict on a file's text; `seed` draws its instance, a new one if none is given.

    With `timed`, the lab's own is run for comparison. Raises WrongAnswerError without a hint.
    """
    rung = _rung(name, world_size)
    if why := confine.obstacle():
        raise LabError(f"{name} cannot be tried on this machine: {why}")
    problems = forbidden(text)
    if problems:
        shown = "; ".join(problems[:3])
        message = tr("{file} cannot be tried: {problems}.", file=path.name, problems=shown)
        raise _NotRunError(message)
    draw = np.random.default_rng(list(seed) if seed else secrets.randbits(64))
    spec, arrays, whole = INSTANCES[rung.task](draw, world_size)
    spec |= {"needs": rung.needs, "world_size": world_size, "limit_s": LIMIT_S}
    theirs = spec | {"task": rung.task, "file": str(path.resolve()), "source": text}
    theirs |= {"trials": rung.trials, "confined": True}
    ended = _run(theirs, arrays)
    trials = _trials(ended, theirs)
    expected, own = _expected(rung, spec, arrays, whole, timed=timed)
    evidence = Evidence(world_size, trials, expected, spec | {"arrays": arrays})
    sentence = rung.judge(evidence)
    _require_carried(ended, rung, evidence)
    return Verdict(sentence, min(trial.step_s for trial in trials), own)


def _rung(name: str, world_size: int) -> Rung:
    require_type(name, str, "name", "the name of a rung, such as '03.flat'")
    if name not in RUNGS:
        raise InputError.of("check_ranks", name, "no such rung", nearest(name, RUNGS))
    require_type(world_size, int, "world_size", f"a number from 2 to {LARGEST_WORLD}")
    if not 2 <= world_size <= LARGEST_WORLD:
        raise InputError.of(
            "check_ranks",
            "world_size",
            f"{world_size}; a rung is tried on 2 to {LARGEST_WORLD} ranks",
        )
    return RUNGS[name]


def _run(spec: Mapping[str, Any], arrays: Sequence[Mapping[str, Any]]) -> Ended:
    with tempfile.TemporaryDirectory(prefix="lab-ranks-") as folder:
        inputs = []
        for rank, mine in enumerate(arrays):
            with io.BytesIO() as stream:
                task = json.dumps(dict(spec) | {"rank": rank, "folder": folder})
                np.savez(stream, spec=np.array(task), **mine)
                inputs.append(stream.getvalue())
        return run_ranks(inputs, folder=Path(folder), limit_s=LIMIT_S)


def _trials(ended: Ended, spec: Mapping[str, Any]) -> list[Trial]:
    """The ranks' output; raises WrongAnswerError with the first cause if a rank left none."""
    contents = [_open(archive) for archive in ended.archives]
    errors: dict[int, dict[str, Any]] = {
        rank: json.loads(str(content["error"]))
        for rank, content in enumerate(contents)
        if "error" in content
    }
    if errors:
        # Ranks that lost a peer failed because of the one that failed first.
        first = min(errors, key=lambda rank: ("Connection" in errors[rank]["message"], rank))
        raise WrongAnswerError(_failure(first, errors[first], spec))
    if any(ended.stacks):
        raise WrongAnswerError(_hang(ended, spec))
    for rank, content in enumerate(contents):
        require(
            bool(content),
            "Rank {rank} ended with exit code {code} before it was done.",
            rank=rank,
            code=ended.codes[rank],
        )
    numbers = sorted({key.split("/")[0] for key in contents[0]}, key=int)
    try:
        return [
            Trial(
                [json.loads(str(content[f"{number}/facts"])) for content in contents],
                [_of(content, number) for content in contents],
            )
            for number in numbers
        ]
    except (KeyError, ValueError):
        raise WrongAnswerError(tr("The ranks did not all do the same.")) from None


def _of(content: Mapping[str, Any], number: str) -> dict[str, Any]:
    prefix = f"{number}/"
    return {
        key.removeprefix(prefix): value
        for key, value in content.items()
        if key.startswith(prefix) and key != f"{prefix}facts"
    }


def _open(archive: bytes) -> dict[str, Any]:
    try:
        with np.load(io.BytesIO(archive), allow_pickle=False) as content:
            return dict(content)
    except (ValueError, OSError, EOFError, KeyError, BadZipFile):
        return {}


def _failure(rank: int, error: Mapping[str, Any], spec: Mapping[str, Any]) -> str:
    file = Path(str(spec.get("file", ""))).name
    obstacles = {
        "MemoryError": tr("it asks for more memory than the 2 GiB that a rank may have"),
        "PermissionError": tr(
            "it may not start processes, open files for writing or reach a network"
        ),
    }
    what = f"{error['type']}: {error['message']}"
    if obstacle := obstacles.get(error["type"]):
        what = f"{what} ({obstacle})"
    if error["line"]:
        return tr(
            "Rank {rank} failed in {file}, line {line}: {what}.",
            rank=rank,
            file=file,
            line=error["line"],
            what=what,
        )
    return tr("Rank {rank} failed: {what}.", rank=rank, what=what)


def _hang(ended: Ended, spec: Mapping[str, Any]) -> str:
    file = str(spec.get("file", ""))
    places = []
    for rank, stack in enumerate(ended.stacks):
        if place := line_in(stack, file):
            line, function = place
            where = tr("line {line}, in {function}", line=line, function=function)
        else:
            where = tr("outside the file") if stack else tr("it had ended")
        places.append(tr("rank {rank}: {where}", rank=rank, where=where))
    return tr(
        "After {limit:.0f} s the ranks were not done. They were in {file}: {places}.",
        limit=LIMIT_S,
        file=Path(file).name,
        places="; ".join(places),
    )


def _expected(
    rung: Rung,
    spec: dict[str, Any],
    arrays: Sequence[dict[str, Any]],
    whole: dict[str, Any],
    *,
    timed: bool,
) -> tuple[dict[str, Any], float | None]:
    """The result of one process on the data of all ranks, and the step time of the lab's own."""
    if rung.task == "all_reduce" and not timed:
        return {}, None  # a sum, which the judge computes itself
    inputs: list[dict[str, Any]] = list(arrays)
    task = spec | {"task": rung.task, "own": rung.own, "confined": False}
    if rung.task == "strategy":
        inputs[0] = inputs[0] | {f"all_{name}": value for name, value in whole.items()}
    elif whole:
        task |= {"task": {"order": "stages"}.get(rung.task, rung.task), "world_size": 1}
        inputs = [whole]
    (trial, *_) = _trials(_run(task, inputs), task)
    step_s = trial.step_s if rung.own else None
    return {name.removeprefix("single_"): one for name, one in trial.arrays[0].items()}, step_s


def _require_carried(ended: Ended, rung: Rung, evidence: Evidence) -> None:
    """Check the calls that the ranks report against the bytes that the kernel carried."""
    if ended.sent is None:
        return
    n = evidence.world_size
    said = sum(fact["bytes"] for trial in evidence.trials for fact in trial.facts)
    if rung.task == "strategy":  # a ring's 2 (n - 1)/n of the gradients, over all steps and ranks
        steps = sum(trial.facts[0]["steps"] for trial in evidence.trials)
        said = int(steps * n * bus_factor("all_reduce", n) * evidence.parameter_bytes)
    elif rung.task == "order":
        said = 0  # only a few numbers are sent
    elif rung.task == "all_reduce":
        said = said // 2  # every byte sent is also received
    require(
        ended.sent >= CARRIED * said,
        "{said} bytes should have passed between the ranks; the kernel carried {sent}.",
        said=said,
        sent=ended.sent,
    )


def _count(path: Path, name: str) -> int:
    """The number of failed tries of a file, including this one."""
    place = path.parent / TRIES
    tries = read_json(place) or {}
    tries[name] = int(tries.get(name, 0)) + 1
    try:
        write_atomically(place, json.dumps(tries).encode(), durable=False)
    except OSError as error:
        raise LabError(f"{place}: {error.strerror}") from None
    return int(tries[name])
