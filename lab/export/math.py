"""Formulas: found in Markdown, kept as `<lab-math>` elements, turned into MathML or handed to Typst."""

from __future__ import annotations

import re
from html import escape

from bs4 import BeautifulSoup, Tag
from nbconvert.filters.markdown_mistune import IPythonRenderer

from lab.errors import LabError
from lab.export import pandoc

ELEMENT = "lab-math"

# `(?<!\\)` keeps a line break of TeX (two backslashes) from being read as the start of a command.
_LABEL = re.compile(r"(?<!\\)\\(?:label\s*\{[^{}]*\}|nonumber\b|notag\b)")
_TAG = re.compile(r"(?<!\\)\\tag\*?\s*\{([^{}]*)\}")
_BACKWARD_SPACE = re.compile(r"(?<!\\)\\!")
_DOUBLE_BAR = re.compile(r"(?<!\\)\\\|")
_SIZE = re.compile(r"(?<!\\)\\[bB]igg?[lrm]?(?![a-zA-Z])")
_MEDIUM_SPACE = re.compile(r"(?<!\\)\\[;:>]")


class MathRenderer(IPythonRenderer):
    """Jupyter's Markdown renderer, with each formula as one element instead of dollar signs in text."""

    def block_math(self, body: str) -> str:
        """A formula on its own line."""
        return element(body, display="block")

    def inline_math(self, body: str) -> str:
        """A formula within a sentence."""
        return element(body, display="inline")

    def latex_environment(self, name: str, body: str) -> str:
        """An environment such as `align`, always on its own lines."""
        return element(rf"\begin{{{name}}}{body}\end{{{name}}}", display="block")


def element(tex: str, *, display: str) -> str:
    """The element that stands for a formula until it is converted; `display` is `block` or `inline`."""
    return f'<{ELEMENT} display="{display}">{escape(tex.strip(), quote=False)}</{ELEMENT}>'


def formulas(soup: Tag) -> list[Tag]:
    """All formulas of a page, in order."""
    return list(soup.find_all(ELEMENT))


def as_script(tex: str, *, display: str) -> str:
    """The form in which pandoc's HTML reader takes a formula."""
    kind = "math/tex; mode=display" if display == "block" else "math/tex"
    return f'<script type="{kind}">{_plain(tex).replace("</", "< /")}</script>'


def for_typst(tex: str) -> str:
    r"""TeX without what pandoc writes badly to Typst.

    `\!` becomes a whole em backwards and `\;` nothing; `\|` and the delimiters after `\big` lose their meaning.
    """
    tex = _SIZE.sub("", _BACKWARD_SPACE.sub("", tex))
    return _DOUBLE_BAR.sub(r"\\Vert ", _MEDIUM_SPACE.sub(r"\\,", tex))


def to_mathml(soup: Tag) -> None:
    """Replace every formula of the page by MathML, with one run of pandoc.

    The TeX source stays as `alttext`. Raises LabError, naming the formula, where pandoc cannot translate one.
    """
    wanted = {(tag.get_text(), str(tag.get("display"))): "" for tag in formulas(soup)}
    if not wanted:
        return
    page = "\n".join(f"<p>{as_script(tex, display=display)}</p>" for tex, display in wanted)
    converted = pandoc.convert(page, to="html", options=["--mathml"])
    check_translated(converted, soup)
    found = BeautifulSoup(converted.text, "html.parser").find_all("math")
    for (tex, display), math in zip(wanted, found, strict=True):
        for note in math.find_all("annotation"):
            note.decompose()
        for wrapper in math.find_all("semantics"):
            wrapper.unwrap()
        _space_functions(math)
        math["alttext"] = tex
        wanted[tex, display] = str(math)
    for tag in formulas(soup):
        tag.replace_with(BeautifulSoup(wanted[tag.get_text(), str(tag.get("display"))], "html.parser"))


def check_translated(converted: pandoc.Converted, soup: Tag) -> None:
    """Raise LabError with each formula that pandoc left as raw TeX, and the section that it stands in."""
    if not converted.untranslated:
        return
    listed = "\n".join(
        f"  - {' '.join(tex.split())}   in {_section(tex, soup)}: {complaint}" for tex, complaint in converted.untranslated
    )
    raise LabError(
        f"formulas that cannot be translated:\n{listed}\n"
        "Write them with the commands of amsmath; packages such as mhchem, cancel and physics are not understood."
    )


def _space_functions(math: Tag) -> None:
    """Thin spaces around the name of a function such as log, which MathML leaves to the browser and browsers leave out."""
    for applied in math.find_all("mo", string="\u2061"):
        name = applied.parent
        if name is None or name.name != "mrow" or len(name.contents) != 2:
            continue
        # The name may carry a sub- or superscript, as in the limit of a function.
        while (
            name.parent is not None
            and name.parent.name.startswith(("msu", "mund", "mov"))
            and name.find_previous_sibling() is None
        ):
            name = name.parent
        space = {"width": "0.167em"}
        before, after = name.find_previous_sibling(), name.find_next_sibling()
        if before is not None and before.name != "mo":
            name.insert_before(Tag(name="mspace", attrs=space))
        if after is not None and after.name != "mo":
            name.insert_after(Tag(name="mspace", attrs=space))


def _plain(tex: str) -> str:
    """TeX less the labels, with numbers of equations kept as text: pandoc would drop those without a word."""
    return _TAG.sub(r"\\qquad\\text{(\1)}", _LABEL.sub("", tex)).strip()


def _section(tex: str, soup: Tag) -> str:
    wanted = _squeezed(tex)
    for tag in formulas(soup):
        if wanted in (_squeezed(_plain(tag.get_text())), _squeezed(_plain(for_typst(tag.get_text())))):
            heading = tag.find_previous(re.compile("^h[1-6]$"))
            return f"section “{heading.get_text().strip()}”" if heading else "the opening"
    return "a heading"


def _squeezed(tex: str) -> str:
    return "".join(tex.split()).replace("</", "<").replace("< /", "<")
