"""Interactive widgets as still outputs: what they showed when the notebook was saved, progress bars left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import nbformat
from nbformat import NotebookNode

VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
_BAR = re.compile(r"\s*(?:[^|\n]*:\s*)?\d{1,3}%\|")
_REFERENCE = "IPY_MODEL_"


def still(output: NotebookNode, states: Mapping[str, Any]) -> list[NotebookNode]:
    """Outputs that show a widget without its script.

    `states` are the models by id, from the notebook's metadata. Without a state the output's own HTML or text is kept,
    unless it is a progress bar.
    """
    shown = list(_outputs(output.data[VIEW]["model_id"], states))
    if shown:
        return _tables_joined(shown)
    if output.data[VIEW]["model_id"] in states:
        return []
    rest = {kind: data for kind, data in output.data.items() if kind != VIEW}
    if not rest or _BAR.match(str(rest.get("text/plain", ""))):
        return []
    return [nbformat.v4.new_output("display_data", data=rest, metadata=output.get("metadata", {}))]


def _outputs(model_id: str, states: Mapping[str, Any], depth: int = 0) -> Iterator[NotebookNode]:
    model = states.get(model_id)
    if model is None or depth > 20:
        return
    name, state = str(model.get("model_name", "")), model.get("state", {})
    if name == "OutputModel":
        yield from (nbformat.from_dict(output) for output in state.get("outputs", ()))
    elif name in {"HTMLModel", "HTMLMathModel"}:
        yield _display("text/html", str(state.get("value", "")))
    elif name == "LabelModel":
        yield _display("text/plain", str(state.get("value", "")))
    elif name == "ImageModel":
        yield from _image(model)
    elif "children" in state:
        yield from _children(state["children"], states, depth)
    elif not name.endswith(("ProgressModel", "ButtonModel")) and (value := _value(state)) is not None:
        yield _display("text/html", _row(str(state.get("description") or name.removesuffix("Model")), value))


def _children(children: list[str], states: Mapping[str, Any], depth: int) -> Iterator[NotebookNode]:
    ids = [child.removeprefix(_REFERENCE) for child in children]
    names = [str(states.get(child, {}).get("model_name", "")) for child in ids]
    # A box with a bar in it is one progress display: its labels say nothing once it is done.
    if not any(name.endswith("ProgressModel") for name in names):
        for child in ids:
            yield from _outputs(child, states, depth + 1)


def _value(state: Mapping[str, Any]) -> str | None:
    if "index" in state and "_options_labels" in state:
        labels, chosen = state["_options_labels"], state["index"]
        picks = chosen if isinstance(chosen, list) else [] if chosen is None else [chosen]
        return ", ".join(str(labels[pick]) for pick in picks)
    value = state.get("value")
    if value is None or isinstance(value, Mapping):
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " to ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def _image(model: Mapping[str, Any]) -> Iterator[NotebookNode]:
    for buffer in model.get("buffers", ()):
        if buffer.get("path") == ["value"] and buffer.get("encoding") == "base64":
            yield _display(f"image/{model['state'].get('format', 'png')}", buffer["data"])


def _row(description: str, value: str) -> str:
    return f'<tr><th scope="row">{escape(description)}</th><td>{escape(value)}</td></tr>'


def _tables_joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Rows of neighbouring controls, as one table."""
    joined: list[NotebookNode] = []
    rows: list[str] = []
    for output in [*outputs, None]:
        html = output.data.get("text/html", "") if output is not None and "data" in output else ""
        if html.startswith('<tr><th scope="row">'):
            rows.append(html)
            continue
        if rows:
            joined.append(_display("text/html", f'<table class="settings"><tbody>{"".join(rows)}</tbody></table>'))
            rows = []
        if output is not None:
            joined.append(output)
    return joined


def _display(kind: str, data: str) -> NotebookNode:
    shown: NotebookNode = nbformat.v4.new_output("display_data", data={kind: data})
    return shown
