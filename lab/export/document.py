"""A notebook as a clean, self-contained body of HTML, from which both the page and the PDF are made."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bs4 import BeautifulSoup, Tag
from nbformat import NotebookNode

from lab.export import headings, images, sanitize, tables


@dataclass(frozen=True)
class Document:
    """Title, authors and body; in the body images are data URIs and formulas are `<lab-math>` elements."""

    title: str
    authors: tuple[str, ...]
    language: str
    body: BeautifulSoup

    @classmethod
    def build(cls, html: str, *, nb: NotebookNode, folder: Path, name: str, language: str) -> Document:
        """Clean what nbconvert's basic template wrote of `nb`; `folder` is where its images are, `name` its file name.

        Raises LabError for an image that is missing or remote.
        """
        body = BeautifulSoup(images.inline_svg_as_images(html), "html.parser")
        sanitize.clean(body)
        _tidy_cells(body)
        title = _put_title(body, nb.metadata.get("title")) or name
        images.embed(body, folder=folder)
        images.frame(body)
        images.describe(body, title=title)
        tables.arrange(body)
        headings.identify(body)
        headings.link(body)
        return cls(title, _authors(nb.metadata), str(nb.metadata.get("lang") or language), body)


def _put_title(body: BeautifulSoup, given: Any) -> str:
    """The title, from the notebook's metadata or its first heading; the body opens with it where there is one."""
    heading = headings.title_heading(body)
    if heading is None and given:
        heading = body.new_tag("h1")
        heading.string = str(given)
        body.insert(0, heading)
    return " ".join(str(given or (heading.get_text() if heading else "")).split())


def _authors(metadata: dict[str, Any]) -> tuple[str, ...]:
    given = metadata.get("authors") or ()
    listed = given if isinstance(given, list | tuple) else [given]
    names = (str(author.get("name", "")) if isinstance(author, dict) else str(author) for author in listed)
    return tuple(name for name in names if name)


def _tidy_cells(body: BeautifulSoup) -> None:
    """Flatten nbconvert's nested boxes into `code` and `output` elements without cell ids, which are random."""
    for tag in body.find_all(id=re.compile("^cell-id=")):
        del tag["id"]
    for colour in body.select("span[class^=ansi-]"):
        colour.unwrap()
    for box in body.select("div.code_cell > div.input"):
        _fold_code(body, box)
    for box in body.select("div.output_subarea"):
        for pre in box.find_all("pre", recursive=False):
            pre["class"] = "error" if "output_error" in box.get_attribute_list("class") else "output"
            if not pre.get_text().strip():
                pre.decompose()
    for box in body.select(
        "div.cell, div.inner_cell, div.text_cell_render, div.output_wrapper, div.output, div.output_area, div.output_subarea"
    ):
        box.unwrap()
    for prompt in body.select("div.prompt"):
        prompt.decompose()


def _fold_code(body: BeautifulSoup, box: Tag) -> None:
    pre = box.find("pre")
    if not isinstance(pre, Tag) or not pre.get_text().strip():
        box.decompose()
        return
    pre["class"] = "code"
    details = body.new_tag("details", attrs={"class": "code", "open": ""})
    summary = body.new_tag("summary")
    summary.string = "Code"
    details.extend([summary, pre.extract()])
    box.replace_with(details)
