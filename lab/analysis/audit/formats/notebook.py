"""Notebooks as the text that a reader sees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any


def as_text(text: str) -> str:
    """The text of a notebook's Markdown cells and outputs, without code; other texts as they are.

    Of an output in several formats, HTML is kept.
    """
    if not text.lstrip().startswith("{") or '"cells"' not in text:
        return text
    try:
        cells = json.loads(text)["cells"]
        return "\n\n".join(part for cell in cells for part in _shown(cell))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return text


def _shown(cell: dict[str, Any]) -> Iterator[str]:
    if cell["cell_type"] == "markdown":
        yield "".join(cell["source"])
    for output in cell.get("outputs", ()):
        shown = output.get("data", {})
        formats = ("text/html", "text/markdown", "text/plain")
        kept = next((shown[name] for name in formats if name in shown), output.get("text", ""))
        yield "".join(kept)
