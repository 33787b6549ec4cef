"""The HTML report: one file that opens offline, without a request, in light and dark, on screen and on paper."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from importlib import resources as files
from pathlib import Path
from typing import Any

import nbformat
from bs4 import BeautifulSoup
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import InvalidNotebook, MarkdownWithMath
from nbformat import NotebookNode
from traitlets import default
from traitlets.config import Config

from lab.errors import LabError
from lab.export import headings, math, mathfont, outputs, widgets
from lab.export.document import Document


class LabHTMLExporter(HTMLExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_html NOTEBOOK`.

    Cells tagged `remove-cell` and the parameters that papermill injects are left out, `hide-input` shows no code,
    `hide-output` no output. A figure's metadata may hold `alt` and `caption`. Title and authors come from the notebook's
    metadata (`title`, `authors`), or the title from the first heading. Raises LabError for a formula that cannot be
    translated and for a missing or remote image.
    """

    export_from_notebook = "Scaling Lab page (HTML)"

    def __init__(self, config: Config | None = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)  # type: ignore[no-untyped-call]
        self.register_preprocessor(outputs.reduce, enabled=True)  # type: ignore[no-untyped-call]

    @default("template_name")
    def _template_name_default(self) -> str:
        return "basic"

    @property
    def default_config(self) -> Config:
        """nbconvert's settings for this exporter: the tags, and the forms in which outputs are shown."""
        config = Config(
            {
                "TagRemovePreprocessor": {
                    "enabled": True,
                    "remove_cell_tags": {"remove-cell", "injected-parameters"},
                    "remove_input_tags": {"hide-input"},
                    "remove_all_outputs_tags": {"hide-output"},
                },
                "CoalesceStreamsPreprocessor": {"enabled": True},
                "TemplateExporter": {"exclude_input_prompt": True, "exclude_output_prompt": True},
                "HTMLExporter": {"exclude_anchor_links": True},
                "NbConvertBase": {"display_data_priority": ["text/html", "text/markdown", "text/plain"]},
            }
        )
        settings: Config = super().default_config.copy()
        settings.merge(config)
        return settings

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Markdown to HTML, with formulas as elements of their own."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = math.MathRenderer(escape=False, attachments=attachments, exclude_anchor_links=True)
        return str(MarkdownWithMath(renderer=renderer).render(source))

    def document(self, nb: NotebookNode, resources: dict[str, Any] | None, **kw: Any) -> tuple[Document, dict[str, Any]]:
        """The notebook's body, clean and self-contained, with formulas not yet converted; and nbconvert's resources."""
        if widgets.STATE not in nb.metadata.get("widgets", {widgets.STATE: {}}):
            nb = nbformat.from_dict(nb)
            del nb.metadata["widgets"]  # nbconvert takes its presence for a state
        try:
            html, resources = super().from_notebook_node(nb, resources, **kw)
        except InvalidNotebook as error:
            raise LabError(f"the notebook refers to an image that is not in it: {error}") from error
        about = resources.get("metadata", {})
        built = Document.build(
            html,
            nb=nb,
            folder=Path(about.get("path") or "."),
            name=str(about.get("name") or "Notebook"),
            language=self.language_code,
        )
        return built, resources

    def from_notebook_node(  # type: ignore[override]  # text, as nbconvert's own exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """The page of a notebook, and nbconvert's resources."""
        built, resources = self.document(nb, resources, **kw)
        return page(built), resources


def page(document: Document) -> str:
    """The whole HTML file of a document, its style, script, images and math font inside it."""
    body = document.body
    _put_authors(document)
    _put_contents(body)
    math.to_mathml(body)
    style = mathfont.face(body) + _file("style.css")
    script = _file("page.js")
    return f"""<!DOCTYPE html>
<html lang="{escape(document.language)}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(document.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{body.decode(formatter="html5").strip()}
<script>{script}</script>
</body>
</html>
"""


def _policy(script: str) -> str:
    """What a browser may do with the page: run this one script, show what is inside the file, and ask for nothing."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; font-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _put_authors(document: Document) -> None:
    heading = headings.title_heading(document.body)
    if heading and document.authors:
        byline = document.body.new_tag("p", attrs={"class": "byline"})
        byline.string = ", ".join(document.authors)
        heading.insert_after(byline)


def _put_contents(body: BeautifulSoup) -> None:
    """Wrap the body in `<main>`, with the table of contents before it."""
    listed = headings.contents(body)
    main = body.new_tag("main", id="main")
    main.extend(body.contents[:])
    body.append(main)
    if listed is None:
        return
    nav = body.new_tag("nav", id="contents", attrs={"aria-label": "Contents"})
    details = body.new_tag("details", open="")
    summary = body.new_tag("summary")
    summary.string = "Contents"
    details.extend([summary, listed])
    nav.append(details)
    skip = body.new_tag("a", href="#main", attrs={"class": "skip"})
    skip.string = "Skip to the text"
    main.insert_before(skip, nav)


@cache
def _file(name: str) -> str:
    return (files.files("lab.export") / name).read_text("utf-8")
