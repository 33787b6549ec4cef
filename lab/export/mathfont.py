"""The math font of a page: STIX Two Math (SIL Open Font License 1.1), cut down to the glyphs in use."""

from __future__ import annotations

import base64
import importlib.util
import io
import string
import unicodedata
from functools import lru_cache
from pathlib import Path

from bs4 import Tag

from lab.errors import LabError

FAMILY = "Lab Math"
FILE = "STIXTwoMath-Regular.ttf"

# What a browser puts there by itself: radical and overline; minus for a hyphen; prime for an apostrophe.
_BY_THE_BROWSER = "√‾−′∞"
_GREEK = "αβγδεζηθικλμνξοπρςστυφχψωΓΔΘΛΞΠΣΦΨΩ"


def folder() -> Path:
    """Folder that holds the font file; it comes with the `ziamath` wheel, which is not imported for it."""
    spec = importlib.util.find_spec("ziamath")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        fonts = Path(location) / "fonts"
        if (fonts / FILE).is_file():
            return fonts
    raise LabError(f"the math font {FILE} is missing: it comes with the package ziamath; install it with: pip install ziamath")


def face(soup: Tag) -> str:
    """CSS `@font-face` with the glyphs that the MathML of the page uses, as a data URI; empty where there is no math."""
    text = "".join(math.get_text() for math in soup.find_all("math"))
    if not text:
        return ""
    kind, data = _subset("".join(sorted(set(text) | _italics(text) | set(_BY_THE_BROWSER))))
    source = f"url(data:font/{kind};base64,{base64.b64encode(data).decode()}) format('{kind}')"
    return f'@font-face {{ font-family: "{FAMILY}"; src: {source}; }}\n'


def _italics(text: str) -> set[str]:
    """Mathematical italics: a browser shows a single letter in `<mi>` with these."""
    return {italic for italic, plain in _italic_letters().items() if plain in text}


@lru_cache
def _italic_letters() -> dict[str, str]:
    letters = set(string.ascii_letters + _GREEK + "ϵϑϰϕϱϖ∂∇")
    block = (chr(code) for code in (0x210E, *range(0x1D434, 0x1D468), *range(0x1D6A4, 0x1D6A6), *range(0x1D6E2, 0x1D71C)))
    plain = {italic: unicodedata.normalize("NFKC", italic) for italic in block}
    # These are variants such as the lunate epsilon, which normalise to the plain letter.
    symbols = dict(zip((chr(code) for code in range(0x1D716, 0x1D71C)), "ϵϑϰϕϱϖ", strict=True))
    return {italic: letter for italic, letter in (plain | symbols).items() if letter in letters}


@lru_cache(maxsize=8)
def _subset(text: str) -> tuple[str, bytes]:
    from fontTools.subset import Options, Subsetter
    from fontTools.ttLib import TTFont

    options = Options()
    options.layout_features = ["*"]  # `ssty`: script-size variants
    options.name_IDs = [0, 1, 2, 13, 14]  # copyright and licence travel with the glyphs
    options.hinting = False
    options.notdef_outline = True
    options.drop_tables += ["DSIG"]
    kind = options.flavor = "woff2" if importlib.util.find_spec("brotli") else "woff"
    with TTFont(folder() / FILE, recalcTimestamp=False) as font:
        subsetter = Subsetter(options)
        subsetter.populate(text=text)
        subsetter.subset(font)
        font.flavor = kind
        buffer = io.BytesIO()
        font.save(buffer, reorderTables=False)
    return kind, buffer.getvalue()
