"""Formulas: `<lab-math>` elements, MathML with its font for the page, TeX for Typst."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
import re
import subprocess
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup, Tag
from bs4.element import Script
from nbconvert.filters.markdown_mistune import IPythonRenderer

from lab.errors import LabError
from lab.report.page import section_of

ELEMENT = "lab-math"
# STIX Two Math (SIL Open Font License 1.1).
FONT = "STIXTwoMath-Regular.ttf"

# `(?<!\\)` keeps a TeX line break (two backslashes) from being read as the start of a command.
# Pandoc would drop the label and number of an equation; a number stays as text.
_TO_PLAIN = (
    (re.compile(r"(?<!\\)\\(?:label\s*\{[^{}]*\}|nonumber\b|notag\b)"), ""),
    (re.compile(r"(?<!\\)\\tag\*?\s*\{([^{}]*)\}"), r"\\qquad\\text{(\1)}"),
)
# Pandoc writes `\!` to Typst as a whole em backwards, `\;` as nothing, and loses the meaning of
# `\|` and of the delimiters after `\big`.
_TO_TYPST = (
    (re.compile(r"(?<!\\)\\!|(?<!\\)\\[bB]igg?[lrm]?(?![a-zA-Z])"), ""),
    (re.compile(r"(?<!\\)\\[;:>]"), r"\\,"),
    (re.compile(r"(?<!\\)\\\|"), r"\\Vert "),
)
# Glyphs that a browser draws by itself: radical, overline, minus for a hyphen, prime, infinity.
_BROWSER_GLYPHS = "√‾−′∞"


class MathRenderer(IPythonRenderer):
    """Jupyter's Markdown renderer, with each formula as one element instead of dollar signs."""

    def block_math(self, body: str) -> str:
        """A formula on its own line."""
        return f'<{ELEMENT} display="block">{escape(body.strip(), quote=False)}</{ELEMENT}>'

    def inline_math(self, body: str) -> str:
        """A formula within a sentence."""
        return f'<{ELEMENT} display="inline">{escape(body.strip(), quote=False)}</{ELEMENT}>'

    def latex_environment(self, name: str, body: str) -> str:
        """An environment such as `align`, always on its own lines."""
        return self.block_math(rf"\begin{{{name}}}{body}\end{{{name}}}")


def _pandoc() -> str:
    import pypandoc

    try:
        path: str = pypandoc.get_pandoc_path()
    except OSError as error:
        advice = "pip install --force-reinstall pypandoc_binary"
        raise LabError(f"reports need pandoc, which is missing; try: {advice}") from error
    return path


def run_pandoc(html: str, sections: Mapping[str, str], *, to: str, options: Sequence[str]) -> str:
    """Convert an HTML fragment, with math as `<script type="math/tex">`.

    Raises LabError if pandoc is missing or fails, with each formula that it cannot translate and
    that formula's section. Pandoc runs in its sandbox and reads neither files nor addresses.
    """
    program = _pandoc()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.json"
        command = [program, "--from=html-auto_identifiers", f"--to={to}"]
        command += ["--wrap=none", "--quiet", "--sandbox", f"--log={log}", *options]
        # In a session of its own: a pandoc that Ctrl-C reaches would be reported as having failed.
        done = subprocess.run(
            command, input=html.encode(), capture_output=True, check=False, start_new_session=True
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip()
            raise LabError(f"pandoc could not convert the page to {to}: {reason}")
        entries = json.loads(log.read_text("utf-8") or "[]")
    untranslated = [entry for entry in entries if entry["type"] == "CouldNotConvertTeXMath"]
    if not untranslated:
        return done.stdout.decode()
    lines = ["formulas that cannot be translated:"]
    for entry in untranslated:
        tex, messages = entry["contents"], map(str.strip, entry["message"].splitlines())
        error = next((line for line in messages if line.startswith("unexpected")), "not understood")
        section = sections.get(_squeeze(tex), "the text before the first heading")
        lines.append(f"  - {' '.join(tex.split())}   in {section}: {error}")
    advice = "packages such as mhchem, cancel and physics are not understood."
    raise LabError("\n".join([*lines, f"Write them with the commands of amsmath; {advice}"]))


def to_scripts(soup: Tag, *, typst: bool = False) -> dict[str, str]:
    """Replace each formula by the script that pandoc reads; returns the section of each."""
    sections = {}
    for tag in soup.find_all(ELEMENT):
        tex = for_typst(tag.get_text()) if typst else tag.get_text()
        for pattern, replacement in _TO_PLAIN:
            tex = pattern.sub(replacement, tex)
        if section := section_of(tag):
            sections[_squeeze(tex)] = f"section “{section}”"
        kind = "math/tex; mode=display" if tag.get("display") == "block" else "math/tex"
        tag.name, tag.attrs = "script", {"type": kind}
        tag.string = Script(tex.strip().replace("</", "< /"))
    return sections


def for_typst(tex: str) -> str:
    """TeX without the commands that pandoc translates badly to Typst."""
    for pattern, replacement in _TO_TYPST:
        tex = pattern.sub(replacement, tex)
    return tex


def to_mathml(soup: BeautifulSoup) -> None:
    """Replace every formula of the page by MathML, with one run of pandoc.

    The TeX source stays as `alttext`. Raises LabError, naming the formula, if pandoc cannot
    translate one.
    """
    formulas = soup.find_all(ELEMENT)
    sources = [tag.get_text() for tag in formulas]
    if not formulas:
        return
    sections = to_scripts(soup)
    page = "\n".join(f"<p>{tag}</p>" for tag in formulas)
    html = run_pandoc(page, sections, to="html", options=["--mathml"])
    translated = BeautifulSoup(html, "html.parser").find_all("math")
    for tag, source, math in zip(formulas, sources, translated, strict=True):
        for note in math.find_all("annotation"):
            note.decompose()
        for wrapper in math.find_all("semantics"):
            wrapper.unwrap()
        _space_functions(math)
        math["alttext"] = source
        tag.replace_with(math)


def _space_functions(math: Tag) -> None:
    """Put thin spaces around the name of a function such as log, which browsers leave out."""
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
        before, after = name.find_previous_sibling(), name.find_next_sibling()
        if before is not None and before.name != "mo":
            name.insert_before(Tag(name="mspace", attrs={"width": "0.167em"}))
        if after is not None and after.name != "mo":
            name.insert_after(Tag(name="mspace", attrs={"width": "0.167em"}))


def _squeeze(tex: str) -> str:
    return "".join(tex.split()).replace("</", "<").replace("< /", "<")


def font_folder() -> Path:
    """Folder of the math font, which comes with the `ziamath` wheel."""
    # Not imported: only the wheel's font is needed.
    spec = importlib.util.find_spec("ziamath")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(location) / "fonts" / FONT).is_file():
            return Path(location) / "fonts"
    raise LabError(f"the math font {FONT} is missing; install it with: pip install ziamath")


def font_face(soup: Tag) -> str:
    """CSS `@font-face` with the glyphs of the page's MathML; empty if there is no math."""
    text = "".join(math.get_text() for math in soup.find_all("math"))
    if not text:
        return ""
    # A browser shows a single letter in `<mi>` as its mathematical italic.
    codes = (0x210E, *range(0x1D434, 0x1D468), *range(0x1D6A4, 0x1D6A6), *range(0x1D6E2, 0x1D71C))
    plain = unicodedata.normalize("NFKC", text)
    italics = {chr(code) for code in codes if unicodedata.normalize("NFKC", chr(code)) in plain}
    kind, data = _subset_font("".join(sorted({*text, *italics, *_BROWSER_GLYPHS})))
    source = f"url(data:font/{kind};base64,{base64.b64encode(data).decode()}) format('{kind}')"
    return f'@font-face {{ font-family: "Lab Math"; src: {source}; }}\n'


@lru_cache(maxsize=8)
def _subset_font(text: str) -> tuple[str, bytes]:
    from fontTools import subset

    kind = "woff2" if importlib.util.find_spec("brotli") else "woff"
    options = subset.Options(
        flavor=kind,
        layout_features=["*"],  # `ssty`: script-size variants
        name_IDs=[0, 1, 2, 13, 14],  # copyright and licence travel with the glyphs
        hinting=False,
        notdef_outline=True,
    )
    with subset.load_font(font_folder() / FONT, options) as font:
        subsetter = subset.Subsetter(options)
        subsetter.populate(text=text)
        subsetter.subset(font)
        buffer = io.BytesIO()
        subset.save_font(font, buffer, options)
    return kind, buffer.getvalue()
