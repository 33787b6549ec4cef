"""What a learner's file may use: a rung of the ladder needs little beyond torch and arithmetic.

A file is refused before it runs, with the line. A check with real processes counts inside these
processes, so code that rewrites the counter could fake the count. This is the first barrier, not
the only one: `lab.worker.confine` contains what passes.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from lab.course.language import tr

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
        *("functional_collectives", "recorder", "clock", "gi_frame", "f_globals", "tb_frame"),
    )
)
REFUSED_NAMES = frozenset(
    (
        *("eval", "exec", "compile", "open", "globals", "locals", "vars", "breakpoint", "input"),
        *("getattr", "setattr", "delattr", "__import__", "__builtins__", "__loader__", "__spec__"),
    )
)
PERMITTED_PARTS = frozenset({"__init__", "__name__", "__call__"})
LARGEST = 50_000  # characters


def problems(text: str) -> list[str]:
    """What a file may not use, each with its line; empty if it may run."""
    if len(text) > LARGEST:
        return [
            tr(
                "the file has {characters} characters; {most} are more than a rung needs",
                characters=len(text),
                most=LARGEST,
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
