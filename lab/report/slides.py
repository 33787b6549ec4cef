"""Slides of a notebook in one file that needs no network; slide types as nbconvert reads them."""

from __future__ import annotations

from typing import Any

from nbconvert.exporters.slides import _RevealMetadataPreprocessor
from nbformat import NotebookNode
from traitlets.config import Config

from lab.errors import LabError
from lab.report.html import LabHTMLExporter

CHOSEN = ("slide", "subslide", "fragment")


def slide_type(cell: NotebookNode) -> str:
    """What Jupyter's property inspector calls the slide type of a cell; empty if it has none."""
    return str(cell.metadata.get("slideshow", {}).get("slide_type", ""))


class LabSlidesExporter(LabHTMLExporter):
    """Exporter of nbconvert: `jupyter nbconvert --to lab_slides NOTEBOOK`.

    Cells whose slide type is one of CHOSEN are shown, without their code, and no others. Raises
    LabError if there is none, and as LabHTMLExporter does.
    """

    export_from_notebook = "Scaling Lab slides (HTML)"
    file_extension = ".slides.html"  # as nbconvert's own slides: the page has .html
    template_file = "slides.html.j2"
    page_template = "deck.html.j2"
    styles = ("style.css", "slides.css")
    scripts = ("slides.js",)

    def __init__(self, config: Config | None = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)
        sections = _RevealMetadataPreprocessor()
        sections.enabled = True
        self.register_preprocessor(sections)  # type: ignore[no-untyped-call]

    @property
    def default_config(self) -> Config:
        """Settings of LabHTMLExporter, without code."""
        settings = super().default_config
        settings.merge(Config({"TemplateExporter": {"exclude_input": True}}))
        return settings

    def from_notebook_node(  # type: ignore[override]  # text, as nbconvert's own exporters
        self, nb: NotebookNode, resources: dict[str, Any] | None = None, **kw: Any
    ) -> tuple[str, dict[str, Any]]:
        """The self-contained slides of a notebook, and nbconvert's resources."""
        shown = nb.copy()
        shown.cells = [cell for cell in nb.cells if slide_type(cell) in CHOSEN]
        if not shown.cells:
            raise LabError("no cell is a slide: give some a slide type in the property inspector")
        return super().from_notebook_node(shown, resources, **kw)
