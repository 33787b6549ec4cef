"""Numbers of figures, tables and references, and the citations of them."""

from __future__ import annotations

from collections import Counter

from bs4 import BeautifulSoup, Tag

# A label begins with one of these, as in Quarto.
KINDS = {"fig-": "Figure", "tbl-": "Table"}
REFERENCE = "ref-"


def cite(*labels: str) -> str:
    """Markdown that cites figures, tables or references; `number_parts` fills in their numbers.

    Targets that the page lacks are left out, and the parentheses too if none remains.
    """
    links = "".join(f'<a href="#{label}"></a>' for label in labels)
    return f'<span class="cite">{links}</span>'


def number_parts(soup: BeautifulSoup) -> None:
    """Number captions whose figure or table has a label, cited references, and all citations.

    A list of class `references` keeps only what is cited, in order of first citation.
    """
    names = _number_captions(soup)
    names |= _arrange_references(soup)
    for citation in soup.select("span.cite"):
        links = [link for link in citation.find_all("a") if _target(link) in names]
        citation.clear()
        if not links:
            citation.decompose()
            continue
        brackets = "[]" if _target(links[0]).startswith(REFERENCE) else "()"
        citation.append(f" {brackets[0]}")
        for nth, link in enumerate(links):
            link.string = names[_target(link)]
            citation.extend([", ", link] if nth else [link])
        citation.append(brackets[1])


def _target(link: Tag) -> str:
    return str(link.get("href", "")).removeprefix("#")


def _number_captions(soup: BeautifulSoup) -> dict[str, str]:
    """The names of labelled figures and tables, now the beginnings of their captions."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for part in soup.find_all(["figure", "table"], id=True):
        label, caption = str(part["id"]), part.find(["figcaption", "caption"])
        kind = KINDS.get(label[:4])
        if kind is None or caption is None:
            continue
        counts[kind] += 1
        name = f"{kind} {counts[kind]}"
        names.setdefault(label, name)
        part["class"] = " ".join([*filter(None, part.get_attribute_list("class")), "numbered"])
        caption.insert(0, " ")
        caption.insert(0, soup.new_tag("strong", string=f"{name}."))
    return names


def _arrange_references(soup: BeautifulSoup) -> dict[str, str]:
    """The numbers of the references that are cited; the others leave the list."""
    entries = {str(entry["id"]): entry for entry in soup.select("ol.references > li[id]")}
    cited = dict.fromkeys(map(_target, soup.select("span.cite > a")))
    numbers = {label: str(nth) for nth, label in enumerate((k for k in cited if k in entries), 1)}
    for bibliography in soup.select("ol.references"):
        bibliography.clear()
        bibliography.extend(entries[label] for label in numbers)
    return numbers
