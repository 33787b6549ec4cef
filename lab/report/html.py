"""The HTML report: one file that opens offline, in light and dark, on screen and on paper."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import TemplateExporter
from nbconvert.filters.markdown_mistune import InvalidNotebook, MarkdownWithMath
from nbformat import NotebookNode
from traitlets import Unicode
from traitlets.config import Config

from lab.errors import LabError
from lab.formatting import printable
from lab.report import clean, math, page
from lab.report.references import number_parts

ASSETS = Path(__file__).with_name("assets")


@dataclass(frozen=True)
class Document:
    """A notebook's page with embedded images; its formulas are still `<lab-math>` elements."""

    title: str
    authors: tuple[str, ...]
    language: str
    body: BeautifulSoup
    lists_contents: bool  # in print, where they would take up prime space

    @property
    def byline(self) -> str:
        """The authors in a line; a name may hold a comma before its affiliation."""
        return ("; " if any("," in name for name in self.authors) else ", ").join(self.authors)


class LabHTMLExporter(TemplateExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_html NOTEBOOK`.

    Cells tagged `remove-cell` and the parameters that papermill injects are left out, `hide-input`
    shows no code, `hide-output` no output. A figure's metadata may hold `alt`, `caption` and
    `label`; a caption is numbered if the label (for a table, its id) begins with `fig-` or `tbl-`.
    Title, authors and language come from the notebook's metadata (`title`, `authors`, `lang`), or
    the title from the first heading; with `toc: false` the PDF lists no contents. Raises
    LabError for a formula that cannot be translated and for a missing or remote image.
    """

    export_from_notebook = "Scaling Lab page (HTML)"
    output_mimetype = "text/html"
    raw_mimetypes = ["text/html", ""]
    file_extension = ".html"
    extra_template_basedirs = [str(ASSETS.parent)]
    template_name = ASSETS.name
    template_file = "index.html.j2"
    page_template = "page.html.j2"  # around the body; these are files of ASSETS
    styles: tuple[str, ...] = ("style.css",)
    scripts: tuple[str, ...] = ("page.js",)
    language_code = Unicode("en", help="Language of the page, an ISO 639-1 code.").tag(config=True)

    def __init__(self, config: Config | None = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)  # type: ignore[no-untyped-call]
        self.register_preprocessor(clean.make_static, enabled=True)  # type: ignore[no-untyped-call]

    @property
    def default_config(self) -> Config:
        """nbconvert's settings for this exporter: the tags, and the form of outputs and code."""
        config = Config(
            {
                "TagRemovePreprocessor": {
                    "enabled": True,
                    "remove_cell_tags": {"remove-cell", "injected-parameters"},
                    "remove_input_tags": {"hide-input"},
                    "remove_all_outputs_tags": {"hide-output"},
                },
                "CoalesceStreamsPreprocessor": {"enabled": True},
                "HighlightMagicsPreprocessor": {"enabled": True},
                "Highlight2HTML": {"extra_formatter_options": {"nowrap": True}},
                "NbConvertBase": {
                    "display_data_priority": ["text/html", "text/markdown", "text/plain"]
                },
            }
        )
        settings: Config = super().default_config.copy()
        settings.merge(config)
        return settings

    def default_filters(self) -> Iterator[tuple[str, Callable[..., str]]]:
        """nbconvert's filters, and those that make Markdown and HTML safe."""
        yield from super().default_filters()  # type: ignore[no-untyped-call]
        yield "markdown2html", self.markdown2html
        yield "sanitize", clean.sanitize
        yield "strip_ansi", printable

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Markdown to sanitized HTML, with formulas as elements of their own."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = math.MathRenderer(
            escape=False, attachments=attachments, exclude_anchor_links=True
        )
        return clean.sanitize(MarkdownWithMath(renderer=renderer).render(source))

    def document(
        self, nb: NotebookNode, resources: dict[str, Any] | None, **kw: Any
    ) -> tuple[Document, dict[str, Any]]:
        """The notebook's page, the source of both the file and the PDF."""
        try:
            html, resources = super().from_notebook_node(nb, resources, **kw)
        except InvalidNotebook as error:
            raise LabError(f"the notebook refers to an image that is not in it: {error}") from error
        about = resources.get("metadata", {})
        body = BeautifulSoup(html, "html.parser")
        heading, title = page.title_heading(body), nb.metadata.get("title")
        if heading is None and title:
            heading = body.new_tag("h1", string=str(title))
            body.insert(0, heading)
        title = " ".join(str(title or (heading.get_text() if heading else "")).split())
        title = title or str(about.get("name") or "Notebook")
        page.embed_images(body, folder=Path(about.get("path") or "."), title=title)
        number_parts(body)
        page.arrange_tables(body)
        page.set_ids(body)
        page.resolve_links(body)
        language = str(nb.metadata.get("lang") or self.language_code)
        authors, contents = _authors(nb.metadata.get("authors")), bool(nb.metadata.get("toc", True))
        return Document(title, authors, language, body, contents), resources

    def from_notebook_node(  # type: ignore[override]  # text, as nbconvert's own exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """The self-contained page of a notebook, and nbconvert's resources."""
        document, resources = self.document(nb, resources, **kw)
        body = document.body
        heading = page.title_heading(body)
        if heading and document.authors:
            line = body.new_tag("p", attrs={"class": "byline"}, string=document.byline)
            heading.insert_after(line)
        math.to_mathml(body)
        script = _texts(self.scripts)
        html = self.environment.get_template(self.page_template).render(
            document=document,
            digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            style=math.font_face(body) + _texts(self.styles),
            script=script,
            contents=page.contents_html(body),
            body=body.decode(formatter="html5").strip(),
        )
        return html, resources


def _texts(names: Iterable[str]) -> str:
    return "\n".join((ASSETS / name).read_text("utf-8") for name in names)


def _authors(metadata: Any) -> tuple[str, ...]:
    authors = metadata if isinstance(metadata, list | tuple) else [metadata]
    names = (part.get("name") if isinstance(part, dict) else part for part in authors)
    return tuple(str(name) for name in names if name)
