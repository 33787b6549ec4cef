"""Numbers of figures, tables and references, and what cites them."""

from __future__ import annotations

from bs4 import BeautifulSoup

from lab.config.datasets import DATASETS
from lab.config.strategies import STRATEGIES
from lab.report import references
from lab.report.references import cite, number_parts


def numbered(html: str) -> str:
    soup = BeautifulSoup(html, "html.parser")
    number_parts(soup)
    return soup.get_text()


def figure(label: str) -> str:
    return f"<figure id={label}><img alt=x><figcaption>Drawn.</figcaption></figure>"


def table(label: str) -> str:
    return f"<table id={label}><caption>Listed.</caption><tr><td>1</td></tr></table>"


def test_captions_count_by_kind_in_the_order_of_the_page() -> None:
    page = figure("fig-a") + table("tbl-a") + figure("fig-b")
    assert numbered(page) == "Figure 1. Drawn.Table 1. Listed.1Figure 2. Drawn."


def test_what_has_no_label_or_no_caption_has_no_number() -> None:
    assert numbered("<figure><figcaption>Figure 7. Own.</figcaption></figure>") == "Figure 7. Own."
    assert numbered("<figure id=fig-a><img alt=x></figure>") == ""
    assert numbered(table("T_1")) == "Listed.1"


def test_citations_name_what_the_page_shows_and_leave_out_the_rest() -> None:
    page = f"Here{cite('fig-b', 'fig-none', 'tbl-a')}.{table('tbl-a')}{figure('fig-b')}"
    assert numbered(page).startswith("Here (Figure 1, Table 1).")
    assert numbered(f"Here{cite('fig-none')}.") == "Here."
    soup = BeautifulSoup(page, "html.parser")
    number_parts(soup)
    assert [link["href"] for link in soup.find_all("a")] == ["#fig-b", "#tbl-a"]


def test_references_are_numbered_as_they_are_cited() -> None:
    entries = "".join(f"<li id=ref-{name}>{name}.</li>" for name in "abc")
    bibliography = f"<ol class=references>{entries}</ol>"
    text = f"First{cite('ref-c')}, then{cite('ref-a', 'ref-c')}."
    assert numbered(text + bibliography) == "First [1], then [2, 1].c.a."


def test_a_list_of_which_nothing_is_cited_goes_with_its_heading() -> None:
    page = "<h2>Method</h2>Plain.<h2>References</h2><ol class=references><li id=ref-a>a.</li></ol>"
    assert numbered(page) == "MethodPlain."
    assert numbered(f"{page}{cite('ref-a')}") == "MethodPlain.Referencesa. [1]"


def test_every_citation_has_its_reference() -> None:
    cited = {*references.TERMS.values(), *references.STRATEGIES.values(), *references.DATA.values()}
    cited |= {"ref-gpt2", "ref-transformer", "ref-distilbert"}
    assert cited == set(references.BIBLIOGRAPHY)
    assert references.STRATEGIES.keys() <= STRATEGIES.keys()
    assert references.DATA.keys() <= DATASETS.keys()
