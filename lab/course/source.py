"""What a learner's file may use: a rung of the ladder needs little beyond torch and arithmetic.

A file is refused before it runs, with the line. A check with real processes counts inside these
processes, so code that rewrites the counter could fake the count. This is the first barrier, not
the only one: `lab.worker.confine` contains what passes.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

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
        return [f"the file has {len(text)} characters; {LARGEST} are more than a rung needs"]
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [
            f"line {getattr(error, 'lineno', None) or 1}: {type(error).__name__}: {error.args[0]}"
        ]
    imports = dict(_imports(tree))
    modules = {name for name, is_module in imports.items() if is_module}
    parents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    problems = set()
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        problems |= {(line, what) for what in _problems_of(node, modules, imports)}
        # Under another name it could be changed undetected.
        if isinstance(node, ast.Name) and node.id in modules and id(node) not in parents:
            problems.add((line, f"uses {node.id} by itself, where one of its functions is needed"))
    return [f"line {line}: {what}" for line, what in sorted(problems)]


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
                yield f"imports {alias.name}, which no rung needs"
    elif isinstance(node, ast.ImportFrom):
        if node.level or node.module not in MODULES:
            yield f"imports from {'.' * node.level}{node.module or ''}, which no rung needs"
        for alias in node.names:
            if alias.name == "*" or _is_refused(alias.name, of_module=True):
                yield f"imports {alias.name}, which no rung needs"
    elif isinstance(node, ast.Name):
        if node.id in REFUSED_NAMES or (node.id.startswith("__") and node.id != "__name__"):
            yield f"uses {node.id}, which no rung needs"
    elif isinstance(node, ast.Attribute):
        of_module = _root(node) in modules
        if _is_refused(node.attr, of_module=of_module):
            yield f"uses {ast.unparse(node)}, which no rung needs"
        elif _root(node) in imports and not isinstance(node.ctx, ast.Load):
            yield f"changes {ast.unparse(node)}, which belongs to somebody else"


def _is_refused(name: str, *, of_module: bool) -> bool:
    if name.startswith("__"):
        return name not in PERMITTED_PARTS
    return name in REFUSED_PARTS or (of_module and name.startswith("_"))


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
