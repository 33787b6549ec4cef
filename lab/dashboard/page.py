"""How the bench looks in JupyterLab: parts of a page, messages, the theme."""

from __future__ import annotations

import base64
import html
from typing import Any

from lab.report.blocks import Figure, Markdown, Table

BENCH, VERDICT = "lab-bench", "lab-verdict"  # CSS classes of the whole and of the forecast
# Figures have dark ink on nothing: dark themes turn lightness around and keep hues. Where the theme
# is not known, figures keep a light ground.
STYLE = f"""<style>
.{BENCH} img {{ max-width: 100%; height: auto; background: white; }}
body[data-jp-theme-light] .{BENCH} img {{ background: none; }}
body[data-jp-theme-light="false"] .{BENCH} img {{ filter: invert(0.93) hue-rotate(180deg); }}
body[data-jp-theme-light="false"] .{BENCH} select {{ appearance: auto; color-scheme: dark; }}
.{BENCH} {{ container-type: inline-size; }}
@container (max-width: 40rem) {{
  .{BENCH} .{VERDICT} {{ height: 13em !important; }}
  .{BENCH} table {{ font-size: 0.78em; }}
  .{BENCH} :is(td, th) {{ padding: 2px 3px; }}
}}
</style>"""


def output(part: Markdown | Table | Figure) -> dict[str, Any]:
    """Part of a page as a Jupyter output; figures as HTML, or JupyterLab drops their text."""
    from IPython.core.formatters import DisplayFormatter

    formatter: Any = DisplayFormatter()
    data, metadata = formatter.format(part)
    if isinstance(part, Figure):
        source = base64.b64encode(part.svg.encode()).decode()
        image = f'src="data:image/svg+xml;base64,{source}"'
        data = {"text/html": f'<img alt="{html.escape(part.alt)}" {image}>', "text/plain": part.alt}
    return {"output_type": "display_data", "data": data, "metadata": metadata}


def message(text: str, *, style: str = "") -> str:
    """HTML that screen readers announce when it changes."""
    return f'<div role="status" style="line-height: 1.4; {style}">{text}</div>'
