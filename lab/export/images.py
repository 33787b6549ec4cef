"""Images of a page: all of them inside it, each in a figure of its own where it stands alone, each with a description."""

from __future__ import annotations

import base64
import binascii
import re
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from xml.parsers import expat

from bs4 import BeautifulSoup, Tag

from lab.errors import LabError

TYPES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_SIGNATURES = {".png": b"\x89PNG", ".jpg": b"\xff\xd8\xff", ".jpeg": b"\xff\xd8\xff", ".gif": b"GIF8", ".webp": b"RIFF"}
_SVG = re.compile(r"<svg\b[^>]*>.*?</svg\s*>", re.IGNORECASE | re.DOTALL)
_TITLE = re.compile(r"<title\b[^>]*>(.*?)</title\s*>", re.IGNORECASE | re.DOTALL)


def inline_svg_as_images(html: str) -> str:
    """HTML in which each inline `<svg>` is an image: there its ids are its own and nothing in it can run."""
    return _SVG.sub(lambda found: _svg_image(found[0]), html)


def embed(soup: Tag, *, folder: Path) -> None:
    """Replace the address of each image by its data; `folder` is the notebook's.

    Raises LabError for a remote or missing image, naming it.
    """
    for image in soup.find_all("img"):
        address = str(image.get("src", ""))
        if not address.startswith("data:"):
            image["src"] = _read(address, folder, alt=str(image.get("alt", "")))


def frame(soup: BeautifulSoup) -> None:
    """Make a figure of each image that is alone in its paragraph; its title becomes the caption."""
    for image in soup.find_all("img"):
        paragraph = image.parent
        alone = paragraph is not None and paragraph.name == "p" and len([c for c in paragraph.contents if str(c).strip()]) == 1
        if not alone or paragraph is None:
            continue
        paragraph.name = "figure"
        if title := image.attrs.pop("title", None):
            caption = soup.new_tag("figcaption")
            caption.string = str(title)
            paragraph.append(caption)


def describe(soup: Tag, *, title: str) -> None:
    """Give an image without alt text that of its caption, or else of the section it stands in."""
    for image in soup.find_all("img"):
        if str(image.get("alt", "")).strip():
            continue
        figure = image.find_parent("figure")
        caption = figure.find("figcaption") if figure else None
        heading = image.find_previous(re.compile("^h[1-6]$"))
        section = heading.get_text().strip() if heading else title
        image["alt"] = caption.get_text().strip() if caption else f"Figure in section “{section}”"


def extract(soup: Tag, *, folder: Path) -> dict[str, str]:
    """Write the embedded images to files in `folder` and refer to them by name; the answer describes each file."""
    described: dict[str, str] = {}
    for number, image in enumerate(soup.find_all("img"), start=1):
        header, _, data = str(image["src"]).partition(",")
        suffix = next((suffix for suffix, kind in TYPES.items() if kind in header.lower()), ".png")
        name = f"figure-{number:03d}{suffix}"
        try:
            content = base64.b64decode(unquote(data)) if ";base64" in header else unquote_to_bytes(data)
        except binascii.Error as error:
            raise LabError(f"the image “{image['alt']}” holds damaged data: run its cell again") from error
        if not _whole(content, suffix):
            raise LabError(f"the image “{image['alt']}” is not a {suffix.removeprefix('.').upper()} image, or is damaged")
        (folder / name).write_bytes(content)
        image["src"] = name
        described[name] = str(image["alt"])
    return described


def _read(address: str, folder: Path, *, alt: str) -> str:
    known = f"image {address or '(no address)'}" + (f" (“{alt}”)" if alt else "")
    parts = urlsplit(address)
    if parts.netloc or parts.scheme in {"http", "https"}:
        raise LabError(f"{known} is on another machine: save it beside the notebook and refer to it by file name")
    path = folder / unquote(parts.path)
    kind = TYPES.get(path.suffix.lower())
    if not parts.path or not path.is_file():
        raise LabError(f"{known} is missing: there is no file {path}" if parts.path else f"{known} names no file")
    if kind is None:
        raise LabError(f"{known} is of a kind that cannot be embedded; use one of: {', '.join(TYPES)}")
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _whole(content: bytes, suffix: str) -> bool:
    if suffix == ".svg":
        return _well_formed(content)
    return content.startswith(_SIGNATURES[suffix])


def _well_formed(svg: bytes) -> bool:
    try:
        expat.ParserCreate(namespace_separator=" ").Parse(svg, True)
    except expat.ExpatError:
        return False
    return True


def _svg_image(svg: str) -> str:
    if "xmlns=" not in svg.partition(">")[0]:
        svg = svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    if not _well_formed(svg.encode()):
        return ""
    title = _TITLE.search(svg)
    alt = escape(unescape(title[1]).strip()) if title else ""
    return f'<img src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}" alt="{alt}">'
