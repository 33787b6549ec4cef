"""Outputs of cells, each reduced to the one form that a still page shows best."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

import nbformat
from nbformat import NotebookNode

from lab.export import sanitize, widgets

IMAGES = ("image/svg+xml", "image/png", "image/jpeg", "image/gif", "image/webp")


def reduce(nb: NotebookNode, resources: dict[str, Any]) -> tuple[NotebookNode, dict[str, Any]]:
    """Preprocessor of nbconvert: leave of each output text, HTML or Markdown; figures become HTML with their alt text."""
    states = nb.metadata.get("widgets", {}).get(widgets.STATE, {}).get("state", {})
    for cell in nb.cells:
        if cell.cell_type == "code":
            shown = (still for output in cell.outputs for still in _still(output, states))
            cell.outputs = [output for output in shown if _reduced(output, cell)]
    return nb, resources


def _still(output: NotebookNode, states: Mapping[str, Any]) -> Iterator[NotebookNode]:
    if widgets.VIEW not in output.get("data", {}):
        yield output
        return
    for shown in widgets.still(output, states):
        yield from _still(shown, states)


def _reduced(output: NotebookNode, cell: NotebookNode) -> bool:
    """Choose the form, in place; false where nothing can be shown."""
    if "data" not in output:
        return True
    kind = _best(output.data)
    if kind is None:
        return False
    data = output.data[kind]
    if kind in IMAGES:
        output.data = {"text/html": _figure(kind, str(data), _told(output.get("metadata", {}), kind, cell))}
    elif kind == "text/latex":
        # Jupyter's Markdown finds the formulas in it.
        output.data = {"text/markdown": data}
    else:
        output.data = {kind: data}
    output.metadata = nbformat.from_dict({})
    return True


def _best(data: Mapping[str, Any]) -> str | None:
    """The form to show: a vector figure first, then HTML that shows something without scripts, then the rest."""
    order = [IMAGES[0], "text/html", "text/markdown", *IMAGES[1:], "text/latex", "text/plain"]
    if "text/html" in data and not sanitize.shows_something(str(data["text/html"])):
        order.remove("text/html")
    return next((kind for kind in order if kind in data), None)


def _told(metadata: Mapping[str, Any], kind: str, cell: Mapping[str, Any]) -> dict[str, str]:
    """What is said of a figure: `alt`, `caption`, `width`, `height`, in the output's metadata or the cell's."""
    own = metadata.get(kind, {})
    places = [own if isinstance(own, Mapping) else {}, metadata, cell.get("metadata", {})]
    keys = ("alt", "caption", "width", "height")
    return {key: str(place[key]) for place in reversed(places) for key in keys if place.get(key)}


def _figure(kind: str, data: str, told: Mapping[str, str]) -> str:
    if kind == "image/svg+xml":
        data = base64.b64encode(data.encode()).decode()
    size = "".join(f' {key}="{escape(told[key])}"' for key in ("width", "height") if key in told)
    alt = escape(told.get("alt") or told.get("caption", ""))
    caption = f"<figcaption>{escape(told['caption'])}</figcaption>" if "caption" in told else ""
    return f'<figure><img src="data:{kind};base64,{"".join(data.split())}" alt="{alt}"{size}>{caption}</figure>'
