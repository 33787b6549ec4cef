"""The PDF exporter on small notebooks whose pages are known."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from pypdf import PdfReader

from lab.errors import LabError
from lab.report import math
from lab.report.html import LabHTMLExporter
from lab.report.pdf import LabPDFExporter
from lab.report.references import cite

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="80pt" height="40pt" viewBox="0 0 8 '
    '4"><rect width="8" height="4"/></svg>'
)
A4 = (595, 842)
EXPORTER = LabPDFExporter()


def notebook(*cells: NotebookNode | str, **metadata: Any) -> NotebookNode:
    whole = [new_markdown_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    return new_notebook(cells=whole, metadata={"language_info": {"name": "python"}} | metadata)


def html(markup: str) -> NotebookNode:
    shown = new_output("display_data", data={"text/html": markup})
    return new_code_cell("", outputs=[shown])


def stream(text: str) -> NotebookNode:
    return new_code_cell("", outputs=[new_output("stream", name="stdout", text=text)])


def pdf(*cells: NotebookNode | str, folder: Path | None = None, **metadata: Any) -> PdfReader:
    resources = {"metadata": {"name": "file", "path": str(folder or "")}}
    data, about = EXPORTER.from_notebook_node(notebook(*cells, **metadata), resources)
    assert data.startswith(b"%PDF") and about["output_extension"] == ".pdf"
    return PdfReader(io.BytesIO(data))


def words(reader: PdfReader) -> str:
    """The text of all pages, with single spaces and without the places where a line may end."""
    text = " ".join(page.extract_text() for page in reader.pages)
    return " ".join(re.sub("[\u200b\u2060]", "", text).split())


def links(reader: PdfReader) -> list[Any]:
    return [note.get_object() for page in reader.pages for note in page.get("/Annots", ())]


def described(reader: PdfReader) -> list[str]:
    """Alternative texts of the figures, from the tags of the PDF."""
    alt_texts = []

    def visit(node: Any) -> None:
        node = node.get_object()
        if isinstance(node, dict):
            if node.get("/S") == "/Figure":
                alt_texts.append(str(node.get("/Alt")))
            children = node.get("/K", [])
            for child in children if isinstance(children, list) else [children]:
                if not isinstance(child, int):
                    visit(child)

    visit(reader.trailer["/Root"]["/StructTreeRoot"])  # type: ignore[index]
    return alt_texts


def table(columns_: int, *, rows: int = 2, cell: str = "1234.5678") -> str:
    head = "".join(f"<th>column {number}</th>" for number in range(columns_))
    body = f"<tr>{f'<td>{cell}</td>' * columns_}</tr>" * rows
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def test_same_notebook_gives_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    nb = notebook("# T\n\n## A\n\n$x$", html(f"<p>x</p>{SVG}"))
    first = LabPDFExporter().from_notebook_node(nb)[0]
    assert LabPDFExporter().from_notebook_node(nb)[0] == first
    assert PdfReader(io.BytesIO(first)).metadata.creation_date_raw == "D:20231114221320Z"  # type: ignore[union-attr]


def test_epoch_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(LabError, match="SOURCE_DATE_EPOCH: 'yesterday' is not a number"):
        pdf("# T")


def test_title_authors_outline_and_page_numbers() -> None:
    reader = pdf(
        "# A `title` & $N$", "## One\n\n### Inner", "## Two", authors=[{"name": 'Ada "#1" \\ x'}]
    )
    about = reader.metadata
    assert about and about.title == "A title & N" and about.author == 'Ada "#1" \\ x'
    assert [entry["/Title"] for entry in reader.outline if isinstance(entry, dict)] == [
        "One",
        "Two",
    ]
    text = words(reader)
    assert text.startswith("A title &") and 'Ada "#1" \\ x' in text and "1 / 1" in text
    assert tuple(round(float(side)) for side in reader.pages[0].mediabox[2:]) == A4


LITERAL = (
    "#let x = 1 and #panic() $ @foo <bar> *a* _b_ `c` // d /* e */ ~ \\ [f] {g} -- --- ... "
    "a-?b -1 2026-11-21 'h' \"i\" = j https://k.org"
)


def test_text_of_a_user_is_literal() -> None:
    escaped = LITERAL.replace("&", "&amp;").replace("<", "&lt;")
    reader = pdf(
        html(
            f"<p>{escaped}</p><table><tr><td>{escaped}</td></tr></table><h2>{escaped}</h2><p>= "
            "a</p><p>- b</p><p>1. c</p>"
        ),
        stream(LITERAL),
        new_code_cell(LITERAL),
    )
    text = words(reader)
    assert text.count(LITERAL) == 5  # paragraph, cell, heading, output, code
    assert "= a - b 1. c" in text


@given(
    st.text(
        alphabet=st.sampled_from(list("#$@<>*_`/\\~[](){}=+-.,;:!?'\"&%^| ab1\n")),
        min_size=1,
        max_size=80,
    )
)
@settings(deadline=None, max_examples=8)
def test_no_output_breaks_the_page(text: str) -> None:
    shown = words(
        pdf(stream(text), html(f"<p>{text.replace('&', '&amp;').replace('<', '&lt;')}</p>"))
    )
    assert "".join(shown.split()).startswith("".join(text.split()) * 2)


def test_headings_may_repeat_and_links_are_kept() -> None:
    reader = pdf(
        "# T\n\n## Same\n\n## Same",
        "[there](#Same-2) [nowhere](#lost) [out](https://example.org/a_(b)?c=d&e#f) [empty]() "
        "[file](study.yaml)",
        "<a id='spot'></a>\n\n[to the spot](#spot)",
    )
    addresses = [
        note["/A"]["/URI"] for note in links(reader) if "/A" in note and "/URI" in note["/A"]
    ]
    assert addresses == ["https://example.org/a_(b)?c=d&e#f", "study.yaml"]
    assert "there nowhere out empty file to the spot" in words(reader)
    assert len(links(reader)) == len(addresses) + 2  # two within the text


def test_only_a_document_of_many_pages_begins_with_its_contents() -> None:
    headings = "# T\n\n## One\n\n## Two"
    for words_of_text, entries in ((100, 0), (6000, 2)):
        assert len(links(pdf(headings, "word " * words_of_text))) == entries


def test_math_is_typeset() -> None:
    text = words(
        pdf(
            r"$a\!b \| c$ and $\left\| d \right\|_2 \Bigl( e \Bigr)$",
            "$$f \\tag{7} \\label{x}$$",
            "$$g \\label{x}$$",
        )
    )
    assert "parallel" not in text and "(7)" in text and "\\" not in text and "‖" in text
    assert math.for_typst(r"a\!b \| c \\| d") == r"ab \Vert  c \\| d"


def test_a_formula_is_on_the_page_of_its_sentence() -> None:
    sentence = "The speedup is\n\n$$ S = \\frac{a}{b} \\tag{77} $$"
    # Somewhere among these the page ends between the two.
    for lines in range(46, 56):
        reader = pdf("\n\n".join(["line"] * lines), sentence)
        pages = [
            [number for number, page in enumerate(reader.pages) if part in page.extract_text()]
            for part in ("The speedup is", "(77)")
        ]
        assert pages[0] == pages[1] and pages[0], lines


def test_formula_that_cannot_be_translated_is_named() -> None:
    with pytest.raises(LabError, match=r"(?s)\\ce\{H2O\}.*section “Water”"):
        pdf("# T\n\n## Water\n\n$\\ce{H2O}$")


@pytest.mark.parametrize("address", ["missing.png", "https://example.org/a.png"])
def test_image_that_cannot_be_had_is_named(address: str, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=re.escape(address)):
        pdf(f"![what]({address})", folder=tmp_path)


def test_damaged_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    with pytest.raises(LabError, match="The speedup curve"):
        pdf("![The speedup curve](a.png)", folder=tmp_path)


def test_figures_are_drawn_with_their_caption() -> None:
    shown = new_output(
        "display_data",
        data={"image/svg+xml": SVG},
        metadata={"image/svg+xml": {"alt": "Bars", "caption": "Fig. #1 $x"}},
    )
    reader = pdf(new_code_cell("", outputs=[shown]), f"{SVG}\n\ntext")
    assert words(reader).startswith("Fig. #1 $x")
    assert reader.pages[0].get_contents().get_data().count(b"8 0 l 8 4 l 0 4 l") == 2  # type: ignore[union-attr]
    assert described(reader) == ["Bars", "Figure in section “file”"]


def drawn(label: str, height: int) -> NotebookNode:
    about = {"alt": label, "caption": f"The {label}.", "label": f"fig-{label}"}
    data = {"image/svg+xml": SVG.replace('height="40pt"', f'height="{height}pt"')}
    shown = new_output("display_data", data=data, metadata={"image/svg+xml": about})
    return new_code_cell("", outputs=[shown])


PARAGRAPHS = [f"Paragraph {number}. {'word ' * 60}" for number in range(10)]


def test_a_figure_without_room_on_the_first_page_still_precedes_the_next() -> None:
    # Paragraphs before the first figure, which may leave it room or not.
    for filled in range(7, 11):
        more = PARAGRAPHS[:4]
        cells = [*PARAGRAPHS[:filled], drawn("first", 300), *more, drawn("second", 200), *more]
        text_of_pdf = words(pdf("# T", *cells))
        assert text_of_pdf.index("The first.") < text_of_pdf.index("The second."), filled


def test_a_figure_stays_in_the_text_if_there_is_room_and_else_the_text_goes_on_before_it() -> None:
    stayed = []
    for filled in range(6, 11):
        text = words(pdf("# T", *PARAGRAPHS[:filled], drawn("first", 300), *["Behind it."] * 4))
        assert text.startswith("T Paragraph 0.")
        stayed.append(text.index("The first.") < text.index("Behind it."))
    assert stayed == sorted(stayed, reverse=True) and {*stayed} == {True, False}


def test_no_figure_is_among_the_references() -> None:
    items = (f'<li id="ref-{name}">Entry {name}.</li>' for name in "abc")
    entries = html(f'<ol class="references">{"".join(items)}</ol>')
    cited = f"Text{cite('ref-a', 'ref-b', 'ref-c')}."
    for filled in range(6, 11):
        shown = pdf("# T", cited, *PARAGRAPHS[:filled], drawn("one", 300), "## References", entries)
        assert words(shown).index("The one.") < words(shown).index("References"), filled


def test_output_parts_all_appear() -> None:
    outputs = [
        new_output("stream", name="stdout", text="```\nprinted\n````\n"),
        new_output("error", ename="ValueError", evalue="boom", traceback=["ValueError: boom"]),
        new_output("execute_result", data={"text/plain": "plain"}),
    ]
    text = words(pdf(new_code_cell("shown = 1", outputs=outputs)))
    assert (
        "shown = 1" in text
        and "``` printed ````" in text
        and "ValueError: boom" in text
        and "plain" in text
    )


def right_edge(reader: PdfReader) -> float:
    """Largest x, in points, at which a piece of text starts, over the width of its page."""
    starts: list[float] = []
    for page in reader.pages:
        width = float(page.mediabox[2])

        def visit(
            text: str, cm: list[float], tm: list[float], *_: Any, width: float = width
        ) -> None:
            if text.strip():
                starts.append((tm[4] * cm[0] + cm[4]) / width)

        page.extract_text(visitor_text=visit)
    return max(starts)


@pytest.mark.parametrize("count", [3, 9, 15, 40])
def test_wide_tables_stay_on_the_page(count: int) -> None:
    reader = pdf("# T\n\n## Wide\n\nAll columns.", html(table(count)))
    assert all(round(float(page.mediabox[2])) == A4[0] for page in reader.pages)
    text = words(reader)
    # In groups of columns, each of which begins with the first one.
    assert all(f"column {number}" in text for number in range(count))
    groups = text.count("column 0")
    assert text.count("1234.5678") == 2 * (count - 1 + groups)
    assert groups == {3: 1, 9: 1, 15: 2, 40: 4}[count]
    assert right_edge(reader) < 1 - 20 / 210
    assert min(sizes(reader, "1234.5678")) >= SMALLEST


def test_long_words_and_lines_stay_on_the_page() -> None:
    reader = pdf(
        html(table(2, cell="x" * 200)),
        stream("y" * 400),
        new_code_cell("z = '" + "z" * 300 + "'"),
        "w" * 300,
    )
    text = words(reader).replace(" ", "")
    for letter, count in {"x": 800, "y": 400, "z": 301, "w": 300}.items():
        assert text.count(letter) >= count
    assert right_edge(reader) < 1 - 20 / 210


def test_long_table_runs_over_pages_with_its_head() -> None:
    reader = pdf(html(table(3, rows=200)))
    assert len(reader.pages) > 2
    assert all("column 0" in page.extract_text() for page in reader.pages)


def test_a_page_does_not_end_with_the_first_row_of_a_long_table() -> None:
    named = table(1, rows=60, cell="cell").replace("<table>", "<table><caption>What.</caption>")
    for lines in range(45, 50):  # before the table, of which less and less fits on their page
        pages = pdf("\n\n".join(["A line."] * lines), html(named)).pages
        (first,) = [text for page in pages if "What." in (text := page.extract_text())]
        assert first.count("cell") > 3


def test_a_heading_is_on_the_page_of_its_table() -> None:
    named = table(1, rows=8, cell="cell").replace("<table>", "<table><caption>What.</caption>")
    for lines in range(40, 48):  # before the table, which no longer fits below them
        pages = pdf("\n\n".join(["A line."] * lines), "## Above it", html(named)).pages
        (below,) = [text for page in pages if "What." in (text := page.extract_text())]
        assert "Above it" in below


def test_a_page_does_not_begin_with_the_last_row_of_a_long_table() -> None:
    lengths = range(66, 72)  # one row after another moves to the second page
    ends = [pdf(html(table(1, rows=rows, cell="cell"))).pages[-1] for rows in lengths]
    last = [page.extract_text().count("cell") for page in ends]
    assert 1 not in last and 2 in last


ROOM = A4[0] - 2 * 20 / 25.4 * 72  # the width of the text, in points


def table_width(reader: PdfReader) -> float:
    """Length, in points, of the rule above the first table."""
    content = reader.pages[0].get_contents().get_data().decode("latin-1")  # type: ignore[union-attr]
    rule = re.search(r"0 -0\.45 l ([\d.]+) -0\.45 l", content)
    return float(rule[1]) if rule else 0.0


def rows(*cells: list[str]) -> NotebookNode:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    return html(f"<table>{body}</table>")


@given(
    st.lists(
        st.lists(st.text(alphabet="ab 1", max_size=60), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None, max_examples=20)
def test_columns_of_text_share_the_width_of_the_page(cells: list[list[str]]) -> None:
    reader = pdf(rows(*cells))
    assert all(round(float(page.mediabox[2])) == A4[0] for page in reader.pages)
    assert right_edge(reader) < 1 - 20 / 210
    assert table_width(reader) <= ROOM + 1


@pytest.mark.parametrize(
    "cells", [["a " * 200, "b" * 24, "c"], ["a " * 80, "b " * 90, "c"], ["1234567890.12345 ms"] * 8]
)
def test_wide_table_fills_the_page(cells: list[str]) -> None:
    assert table_width(pdf(rows(cells, cells))) == pytest.approx(ROOM, abs=1)


def test_a_column_holds_its_longest_word_even_among_many_rows() -> None:
    places: dict[str, float] = {}

    def visit(piece: str, cm: list[float], tm: list[float], *_: Any) -> None:
        if (word := piece.strip()) in {"int8_weight_only", "beside"}:
            places[word] = tm[4] * cm[0] + cm[4]

    common = ["its base (fp32) on this node", "and", *["1234.5678 ms"] * 8]
    reader = pdf(rows(*[common] * 40, ["int8_weight_only", "beside", *common[2:]]))
    for page in reader.pages:
        page.extract_text(visitor_text=visit)
    assert places["beside"] - places["int8_weight_only"] > 62  # points that the word takes


def test_a_column_of_few_words_is_not_broken_beside_a_column_of_many() -> None:
    lines = pdf(rows(["cluster profile", "many words " * 40])).pages[0].extract_text().splitlines()
    assert any("cluster profile" in line for line in lines)


def test_letters_are_smaller_before_a_cell_is_broken() -> None:
    text = pdf(rows(["1234.5 [1234.4, 1234]"] * 6)).pages[0].extract_text()
    assert text.replace("\N{NO-BREAK SPACE}", " ").count("1234.5 [1234.4, 1234]") == 6


def test_a_head_is_broken_before_the_cells_below_it() -> None:
    head = "".join(f"<th>measured time of {number}</th>" for number in range(8))
    cells = "".join(["<td>batch 16, compiled</td>", *["<td>127.6</td>"] * 8])
    body = f"<thead><tr><th>name</th>{head}</tr></thead><tbody><tr>{cells}</tr></tbody>"
    lines = pdf(html(f"<table>{body}</table>")).pages[0].extract_text().splitlines()
    assert any("batch 16, compiled" in line for line in lines)
    assert not any("measured time of 7" in line for line in lines)


SMALLEST = 7.99  # points, for a reader


def sizes(reader: PdfReader, text: str) -> list[float]:
    """In points, the type in which a text is set."""
    type_sizes: list[float] = []

    def visit(piece: str, cm: list[float], tm: list[float], font: Any, size: float) -> None:
        if text in piece:
            type_sizes.append(size)

    for page in reader.pages:
        page.extract_text(visitor_text=visit)
    return type_sizes


def test_a_number_breaks_before_its_interval_alone_and_stays_readable() -> None:
    reader = pdf(rows(["one", *["127.6 [127.0, 128.1] ms"] * 6], ["two", *["none"] * 6]))
    assert sizes(reader, "[127.0,") and min(sizes(reader, "[127.0,")) >= SMALLEST
    lines = reader.pages[0].extract_text().replace("\u00a0", " ").splitlines()
    assert any("127.6" in line and "[" not in line for line in lines)
    assert sum("[127.0, 128.1] ms" in line for line in lines) > 0


def test_captions_are_numbered_and_cited_with_links() -> None:
    captioned = "<table id='tbl-a'><caption>What.</caption><tr><td>1</td></tr></table>"
    reader = pdf(f"Text{cite('tbl-a', 'tbl-b')}.", html(captioned))
    assert words(reader).startswith("Text (Table 1). Table 1. What.")
    assert len(links(reader)) == 1


def test_exporters_are_registered() -> None:
    from nbconvert.exporters import get_exporter

    assert get_exporter("lab_pdf") is LabPDFExporter
    assert get_exporter("lab_html") is LabHTMLExporter


def test_table_without_cells_is_left_out() -> None:
    output = new_output(
        "display_data", {"text/html": "<table><caption>An empty one</caption></table>"}
    )
    body, _ = LabPDFExporter().from_notebook_node(
        new_notebook(cells=[new_code_cell("", outputs=[output])])
    )
    assert body.startswith(b"%PDF")


def test_a_word_of_many_letters_and_escapes_of_a_terminal_are_printed() -> None:
    odd = "\x1b]8;;https://x.example\x07link\x1b]8;;\x07 \x1b[2K\x07\x00 end"
    text = words(pdf("w" * 200_000, stream(f"{odd}\n{'v' * 200_000}\n")))
    assert "… (198000 more letters)" in text and "w" * 40 in text and "v" * 40 in text
    assert "link end" in text and "x.example" not in text
