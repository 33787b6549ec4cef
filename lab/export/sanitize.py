"""Keeps of a page's HTML what shows something, and removes all that acts: one allow-list, applied to the tree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import tinycss2
from bs4 import BeautifulSoup, Tag
from bs4.element import PreformattedString

from lab.export.math import ELEMENT

TAGS = frozenset(
    "a abbr b bdi bdo blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption figure "
    "h1 h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre q s samp section small span strong style sub summary sup table tbody "
    f"td tfoot th thead time tr tt u ul var wbr {ELEMENT}".split()
)
# Elements whose content is not for reading; any other unknown element gives way to its content.
_REMOVED = (
    "script iframe frame frameset object embed applet link meta base form input button select option textarea template noscript "
    "noembed noframes audio video source track canvas portal head title svg math xmp plaintext dialog map area param"
)
REMOVED = frozenset(_REMOVED.split())
_ATTRIBUTES = "class id title lang dir style align valign display scope open start reversed type value"
ATTRIBUTES = frozenset(_ATTRIBUTES.split())
OF_ELEMENT = {
    "a": {"href", "name"},
    "img": {"src", "alt", "width", "height"},
    "td": {"colspan", "rowspan"},
    "th": {"colspan", "rowspan"},
    "col": {"span"},
    "colgroup": {"span"},
    "time": {"datetime"},
}
PROPERTIES = re.compile(
    r"(-webkit-)?(background|background-color|color|font-(size|style|weight|variant|family)|text-(align|decoration|indent|transform)"
    r"|vertical-align|white-space|(min-|max-)?(width|height)|(padding|border|margin)(-(left|right|top|bottom|color|style|width"
    r"|collapse|spacing|radius))*|opacity|line-height|float|caption-side)"
)
FUNCTIONS = frozenset({"rgb", "rgba", "hsl", "hsla", "calc", "linear-gradient"})
IMAGE_DATA = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]", re.IGNORECASE)


def clean(soup: Tag) -> None:
    """Remove scripts, frames, forms, event handlers and unsafe addresses from the tree, in place.

    Of `<style>` only rules for one element by its id are kept, as pandas writes them for a styled table.
    """
    # Comments, CDATA and the like.
    for text in soup.find_all(string=lambda text: isinstance(text, PreformattedString)):
        text.extract()
    for box in soup.select("input[type=checkbox]"):
        box.replace_with("☑ " if box.has_attr("checked") else "☐ ")
    for tag in soup.find_all(True):
        if tag.decomposed:
            continue
        if tag.name in REMOVED:
            tag.decompose()
        elif tag.name == "style":
            _clean_style(tag)
        elif tag.name not in TAGS:
            tag.unwrap()
        else:
            _clean_attributes(tag)


def shows_something(html: str) -> bool:
    """Whether an HTML output has text or an image left once it is clean."""
    soup = BeautifulSoup(html, "html.parser")
    clean(soup)
    for style in soup.find_all("style"):
        style.decompose()
    return bool(soup.get_text().strip() or soup.find("img"))


def _clean_attributes(tag: Tag) -> None:
    allowed = ATTRIBUTES | OF_ELEMENT.get(tag.name, set())
    for name in [name for name in tag.attrs if name not in allowed]:
        del tag[name]
    if "href" in tag.attrs and not _safe_link(str(tag["href"])):
        del tag["href"]
    if "src" in tag.attrs and not _safe_image(str(tag["src"])):
        del tag["src"]
    if "style" in tag.attrs:
        tag["style"] = _declarations(tinycss2.parse_blocks_contents(str(tag["style"])))
        if not tag["style"]:
            del tag["style"]


def _scheme(address: str) -> str:
    # Browsers ignore control characters and spaces within a scheme; so must this.
    try:
        return urlsplit(re.sub(r"[\x00-\x20\x7f-\x9f\u200b-\u200f\u2028\u2029\ufeff]", "", address)).scheme.lower()
    except ValueError:
        return "unreadable"


def _safe_link(address: str) -> bool:
    return _scheme(address) in {"", "http", "https", "mailto"}


def _safe_image(address: str) -> bool:
    scheme = _scheme(address)
    # A remote image is refused later, by name; here it is only told apart from what could run.
    return bool(IMAGE_DATA.match(address)) if scheme == "data" else scheme in {"", "http", "https", "file", "attachment"}


def _clean_style(tag: Tag) -> None:
    rules = [
        f"{tinycss2.serialize(rule.prelude).strip()} {{ {declared} }}"
        for rule in tinycss2.parse_stylesheet(tag.get_text(), skip_comments=True, skip_whitespace=True)
        if rule.type == "qualified-rule" and _by_id(rule.prelude)
        if (declared := _declarations(tinycss2.parse_blocks_contents(rule.content)))
    ]
    if not rules:
        tag.decompose()
        return
    tag.attrs = {}
    tag.string = "\n".join(rules).replace("<", "")


def _by_id(prelude: Iterable[tinycss2.ast.Node]) -> bool:
    """Whether each selector of a rule starts with an id, so that the rule cannot reach the rest of the page."""
    first = True
    for token in prelude:
        if token.type == "whitespace":
            continue
        if first and token.type != "hash":
            return False
        first = token.type == "literal" and token.value == ","
    return not first


def _declarations(nodes: Iterable[tinycss2.ast.Node]) -> str:
    kept = (
        node for node in nodes if node.type == "declaration" and PROPERTIES.fullmatch(node.lower_name) and _harmless(node.value)
    )
    return "; ".join(f"{node.lower_name}: {tinycss2.serialize(node.value).strip()}" for node in kept)


def _harmless(tokens: Iterable[tinycss2.ast.Node]) -> bool:
    for token in tokens:
        if token.type in {"url", "error"} or (token.type == "function" and token.lower_name not in FUNCTIONS):
            return False
        if token.type == "function" and not _harmless(token.arguments):
            return False
    return True
