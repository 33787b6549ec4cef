"""Parts of a page and messages as what JupyterLab shows."""

from __future__ import annotations

import base64
import html
from typing import Any

from lab.page import Figure, Prose, Table


def output(part: Prose | Table | Figure) -> dict[str, Any]:
    """A part of a page as an output of Jupyter; figures as images in HTML, because JupyterLab shows no other with their text."""
    from IPython.core.formatters import DisplayFormatter

    formatter: Any = DisplayFormatter()
    data, metadata = formatter.format(part)
    if isinstance(part, Figure):
        source = base64.b64encode(part.svg.encode()).decode()
        # Their ink is dark: the dark theme needs paper below them.
        image = f'style="background: white" src="data:image/svg+xml;base64,{source}"'
        data = {"text/html": f'<img alt="{html.escape(part.alt)}" {image}>', "text/plain": part.alt}
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def message(text: str, *, style: str = "") -> str:
    """HTML that is read out when it changes."""
    return f'<div role="status" style="line-height: 1.4; {style}">{text}</div>'
