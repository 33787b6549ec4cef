"""The HTML exporter on small notebooks whose page is known."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from fontTools.ttLib import TTFont
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from lab.errors import LabError
from lab.report.blocks import Markdown
from lab.report.html import ASSETS, REMOVED, LabHTMLExporter, sanitize
from lab.report.page import NUMBER

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="8pt" height="4pt" viewBox="0 0 8 4"><rect '
    'width="8" height="4"/></svg>'
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

EXPORTER = LabHTMLExporter()


def display(metadata: dict[str, Any] | None = None, **data: str) -> NotebookNode:
    """A display output; keywords are short names of its forms."""
    kinds = {
        "svg": "image/svg+xml",
        "png": "image/png",
        "html": "text/html",
        "text": "text/plain",
        "latex": "text/latex",
    }
    return new_output(
        "display_data",
        data={kinds[name]: value for name, value in data.items()},
        metadata=metadata or {},
    )


def code(*outputs: NotebookNode, source: str = "x = 1", tags: tuple[str, ...] = ()) -> NotebookNode:
    return new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})


def notebook(*cells: NotebookNode | str, **metadata: Any) -> NotebookNode:
    """A notebook; text stands for a Markdown cell."""
    whole = [new_markdown_cell(cell) if isinstance(cell, str) else cell for cell in cells]
    return new_notebook(cells=whole, metadata={"language_info": {"name": "python"}} | metadata)


def export(*cells: NotebookNode | str, folder: Path | None = None, **metadata: Any) -> str:
    resources = {"metadata": {"name": "file", "path": str(folder or "")}}
    return str(EXPORTER.from_notebook_node(notebook(*cells, **metadata), resources)[0])


def page(*cells: NotebookNode | str, folder: Path | None = None, **metadata: Any) -> BeautifulSoup:
    return BeautifulSoup(export(*cells, folder=folder, **metadata), "html.parser")


def test_page_asks_for_nothing_and_runs_only_its_own_script() -> None:
    html = export("# T\n[link](https://example.org/x)", code(display(svg=SVG)), widgets={})
    soup = BeautifulSoup(html, "html.parser")
    assert len(soup.find_all("script")) == 1 and not soup.find("script", src=True)
    assert all(str(tag["src"]).startswith("data:") for tag in soup.find_all(src=True))
    assert [tag["href"] for tag in soup.find_all("link")] == ["data:,"]
    assert not re.search(r"@import|url\((?!data:)", html)
    policy = str(soup.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"])  # type: ignore[index]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy


def test_a_template_that_nbconvert_lacks_is_told() -> None:
    bare = LabHTMLExporter()
    bare.template_paths = [str(ASSETS)]
    told = r"nbconvert lacks its template .*\.j2, which lies in share/jupyter of its environment"
    with pytest.raises(LabError, match=told):
        bare.from_notebook_node(notebook("text"))


def test_same_notebook_gives_same_bytes() -> None:
    nb = notebook(
        "# T\n$x^2$", code(display(svg=SVG), new_output("stream", name="stdout", text="a"))
    )
    first = LabHTMLExporter().from_notebook_node(nb)[0]
    for cell in nb.cells:
        cell.id = f"other-{cell.id}"[:60]
    assert LabHTMLExporter().from_notebook_node(nb)[0] == first


def test_math_becomes_mathml() -> None:
    soup = page(
        r"Inline $S(N)=\frac{1}{s+\frac{1-s}{N}}$ and display $$\sum_{i=1}^N x_i$$",
        "\\begin{align}\na &= b \\\\\nc &\\le d \\label{eq:one}\n\\end{align}",
        code(display(latex=r"$\displaystyle \sqrt{2}$", text="sqrt(2)")),
        "Price \\$5 and code `$x$`.",
    )
    maths = soup.find_all("math")
    assert [math["display"] for math in maths] == ["inline", "block", "block", "inline"]
    assert maths[0].find("mfrac") and maths[1].find("munderover") and maths[3].find("msqrt")
    assert [row.get_text() for row in maths[2].find_all("mtr")] == ["a=b", "c≤d"]
    assert maths[0]["alttext"] == r"S(N)=\frac{1}{s+\frac{1-s}{N}}"
    main = soup.find("main")
    assert main and "\\" not in main.get_text() and "Price $5 and code $x$." in main.get_text()


def test_name_of_a_function_is_spaced() -> None:
    math = page(r"$O(n\log n)$").find("math")
    log = math.find("mi", string="log")  # type: ignore[union-attr]
    assert (
        log.parent.find_previous_sibling().name == log.parent.find_next_sibling().name == "mspace"
    )  # type: ignore[union-attr]


def test_math_font_holds_the_glyphs_in_use_and_the_math_table() -> None:
    html = export(r"$$\sqrt{\alpha} + \int x\,h = \mathbb{R}$$")
    font_match = re.search(r"url\(data:font/(woff2?);base64,([A-Za-z0-9+/=]+)\)", html)
    assert font_match
    font = TTFont(io.BytesIO(base64.b64decode(font_match[2])))
    # The italic alpha, x and Planck's h are what a browser shows for <mi>.
    assert {ord(letter) for letter in "√∫ℝ+=−\U0001d6fc\U0001d465\u210e"} <= set(font.getBestCmap())
    assert "MATH" in font and font["maxp"].numGlyphs < 200
    assert "Open Font License" in font["name"].getDebugName(13)
    assert "@font-face" not in export("No formula.")


@pytest.mark.parametrize("tex", [r"\ce{H2O}", r"\frac{a", r"a < \unheard{b}"])
def test_formula_that_cannot_be_translated_is_named(tex: str) -> None:
    with pytest.raises(LabError) as error:
        export("# Title\n\n## Water\n\n", f"See ${tex}$ here.")
    assert tex in str(error.value) and "Water" in str(error.value)


def test_contents_follow_the_headings() -> None:
    soup = page("# Title\n\n## One\n\n### Inner `code`\n\n## Two $x$", "### Last\n\n#### Too deep")
    nav = soup.find("nav")
    assert nav
    links = nav.find_all("a")
    assert [link.get_text() for link in links[:2]] == ["One", "Inner code"] and links[2].find(
        "math"
    )
    assert [len(link.find_parents("ol")) for link in links] == [1, 2, 1, 2, 3]
    assert all(
        soup.find(id=str(link["href"])[1:]) for link in links if "$" not in str(link["href"])
    )
    assert not page("# Only a title").find("nav")


def test_heading_ids_are_those_of_jupyter_and_unique() -> None:
    soup = page(
        "# A b\n\n## Same\n\n## Same\n\n## Same-2\n\n[one](#same) [two](#Same-2) [three](#a-b) "
        "[none](#nowhere) [empty]()"
    )
    assert [heading["id"] for heading in soup.find_all(["h1", "h2"])] == [
        "A-b",
        "Same",
        "Same-2",
        "Same-2-2",
    ]
    main = soup.find("main")
    assert main and [link["href"] for link in main.find_all("a")] == ["#Same", "#Same-2", "#A-b"]
    assert "none empty" in main.get_text()


def test_title_authors_and_language() -> None:
    soup = page(
        "# A *first* heading", title="From metadata", authors=[{"name": "Ada"}, "Grace"], lang="de"
    )
    assert (
        soup.title
        and soup.title.string == "From metadata"
        and soup.html
        and soup.html["lang"] == "de"
    )
    assert [heading.get_text() for heading in soup.find_all("h1")] == ["A first heading"]
    assert soup.select(".byline")[0].get_text() == "Ada, Grace"
    placed = page("# T", authors=["Ada, London", "Grace"])
    assert placed.select(".byline")[0].get_text() == "Ada, London; Grace"
    assert page("# A *first* heading").title.get_text() == "A first heading"  # type: ignore[union-attr]
    assert [heading.get_text() for heading in page("Text.", title="Given").find_all("h1")] == [
        "Given"
    ]
    assert page("Text.").title.get_text() == "file"  # type: ignore[union-attr]


def test_tags_hide_code_outputs_and_cells() -> None:
    stream = new_output("stream", name="stdout", text="printed")
    soup = page(
        code(stream, source="shown = 1"),
        code(stream, source="hidden = 2", tags=("hide-input",)),
        code(stream, source="alone = 3", tags=("hide-output",)),
        code(stream, source="gone = 4", tags=("remove-cell",)),
    )
    assert [pre.get_text().strip() for pre in soup.select("details.code[open] > pre")] == [
        "shown = 1",
        "alone = 3",
    ]
    assert len(soup.select("pre.output")) == 2


def test_figures_are_svg_with_alt_text_and_caption() -> None:
    metadata = {"image/svg+xml": {"alt": 'Speedup "rises"', "caption": "Figure 1. A <b>"}}
    soup = page(
        "## Curves",
        code(display(metadata, svg=SVG, png=PNG, text="<Figure>")),
        code(display(svg=SVG)),
        code(display(png=PNG)),
    )
    first, second, third = soup.find_all("img")
    assert base64.b64decode(str(first["src"]).partition(",")[2]).decode() == SVG
    assert first["alt"] == 'Speedup "rises"'
    assert (
        first.parent
        and first.parent.name == "figure"
        and first.parent.get_text().strip() == "Figure 1. A <b>"
    )
    assert second["alt"] == third["alt"] == "Figure in section “Curves”"
    assert str(third["src"]).startswith("data:image/png;base64,")
    assert "<Figure>" not in soup.get_text()


def test_markdown_images_are_embedded(tmp_path: Path) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "top.svg").write_text(SVG)
    (tmp_path / "plots" / "a b.png").write_bytes(base64.b64decode(PNG))
    soup = page(
        "![one](../top.svg 'A caption')", "in ![two](a%20b.png) text", folder=tmp_path / "plots"
    )
    one, two = soup.find_all("img")
    assert str(one["src"]).startswith("data:image/svg+xml;base64,") and str(two["src"]).startswith(
        "data:image/png;base64,"
    )
    assert (
        one.parent and one.parent.name == "figure" and one.parent.get_text().strip() == "A caption"
    )
    assert two.parent and two.parent.name == "p"


def test_attachment_is_embedded() -> None:
    cell = new_markdown_cell("![it](attachment:a.png)", attachments={"a.png": {"image/png": PNG}})
    assert page(cell).find("img")["src"] == f"data:image/png;base64,{PNG}"  # type: ignore[index]


@pytest.mark.parametrize(
    "address",
    [
        "missing.png",
        "https://example.org/a.png",
        "//example.org/a.png",
        "attachment:none.png",
        "a.exe",
    ],
)
def test_image_that_cannot_be_embedded_is_named(address: str, tmp_path: Path) -> None:
    (tmp_path / "a.exe").write_text("no image")
    with pytest.raises(LabError, match=re.escape(address.removeprefix("attachment:"))):
        export(f"![what it shows]({address})", folder=tmp_path)


@pytest.mark.parametrize(
    "attack",
    [
        "<script>alert(1)</script>",
        "<ScRiPt src=https://example.org/x.js></sCrIpT>",
        "<img src=x onerror=alert(1)>".replace("src=x", f"src='data:image/png;base64,{PNG}'"),
        "<a href='javascript:alert(1)'>x</a>",
        "<a href=' java\tscript:alert(1)'>x</a>",
        "<a href='&#106;avascript:alert(1)'>x</a>",
        "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
        "<iframe src='https://example.org'></iframe>",
        "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
        "<object data='https://example.org/x'></object><embed src='https://example.org/x'>",
        "<svg onload=alert(1)><script>alert(1)</script></svg>",
        "<svg><a xlink:href='javascript:alert(1)'>x</a></svg>",
        "<math><mtext><style><img src=x onerror=alert(1)></style></mtext></math>",
        "<style>@import url(https://example.org/x.css); body { display: none }</style>",
        "<p style='background: url(https://example.org/x.png)'>x</p>",
        "<p style='background: image-set(\"https://example.org/x.png\" 1x)'>x</p>",
        "<meta http-equiv=refresh content='0;url=https://example.org'><base "
        "href='https://example.org'>",
        "<form action='https://example.org'><input><button "
        "formaction='javascript:alert(1)'>b</button></form>",
        "<link rel=stylesheet href=https://example.org/x.css><video src=https://example.org/x "
        "poster=https://example.org/y></video>",
        "<!-- <script>alert(1)</script> --><![CDATA[<script>alert(1)</script>]]>",
        f"<noscript><p title='</noscript><img src=data:image/png;base64,{PNG} "
        "onerror=alert(1)>'></noscript>",
        "<xmp></xmp><template><script>alert(1)</script></template>",
        "<table background=https://example.org/x><tr><td onclick=alert(1)>1</td></tr></table>",
    ],
)
@pytest.mark.parametrize("place", ["markdown", "output"])
def test_nothing_of_a_user_acts_or_asks(attack: str, place: str) -> None:
    cell = (
        f"Before\n\n{attack}\n\nafter"
        if place == "markdown"
        else code(display(html=f"<p>Before</p>{attack}<p>after</p>"))
    )
    soup = page(cell)
    main = soup.find("main")
    assert main
    assert not main.find(sorted(REMOVED))
    names = {name for tag in main.find_all(True) for name in tag.attrs}
    assert not {
        name
        for name in names
        if name.startswith("on") or name in {"srcdoc", "action", "poster", "background"}
    }
    assert not re.search(
        r"javascript:|data:text|@import|url\(|example\.org|alert\(1\)(?!</script>)",
        re.sub(r"data:image/[^\"]+", "", str(main)),
    ) or ("CDATA" in attack and "<script" not in str(main))
    assert "Before" in main.get_text() and "after" in main.get_text()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=60))
@settings(deadline=None, max_examples=200)
def test_cleaned_html_stays_clean(text: str) -> None:
    markup = f"<p>{text}</p><a href='{text}'>x</a><p style='{text}'>y</p>"
    again = BeautifulSoup(sanitize(sanitize(markup)), "html.parser")
    for tag in again.find_all(True):
        assert tag.name not in REMOVED
        assert not any(name.startswith("on") for name in tag.attrs)
        assert not str(tag.get("href", "")).lower().strip().startswith("javascript:")


def test_text_of_a_user_is_literal() -> None:
    tricky = "<b>&amp; </pre><script>1</script> $x$ \x1b[31mred\x1b[0m"
    soup = page(
        code(
            new_output("stream", name="stdout", text=tricky + "\n 0%\r100%\n"),
            display(text=tricky),
            new_output("error", ename="E", evalue="<i>", traceback=["\x1b[0;31mE\x1b[0m: <i>"]),
            source="'<b>&amp;'",
        )
    )
    shown = "<b>&amp; </pre><script>1</script> $x$ red"
    outputs = [pre.get_text().strip() for pre in soup.select("pre.output")]
    assert outputs == [f"{shown}\n100%", shown]
    assert soup.select("pre.error")[0].get_text().strip() == "E: <i>"
    assert soup.select("pre.code")[0].get_text().strip() == "'<b>&amp;'"


def test_addresses_in_sentences_are_no_links_and_swallow_no_escapes() -> None:
    sentence = "see https://x.example/<img src=y onerror=z>, www.x.example, a@b.example, `c` *d*"
    for cell in (Markdown.of(sentence), Markdown.bullets([sentence])):
        body = page(cell.markdown)
        text = " ".join(body.get_text().split())
        assert sentence in text and not body.select("a[href*='x.example'], img, code, em")


def test_pandas_table_aligns_numbers_and_can_be_sorted() -> None:
    import pandas as pd

    frame = pd.DataFrame(
        {"name": ["b", "a"], "time (ms)": [10.5, None], "interval": ["[9.0, 11.2]", "[1, 2]"]}
    )
    soup = page(code(display(html=frame.rename_axis("id").to_html())))
    table = soup.select("div.table-box[tabindex='0'] > table.sortable")[0]
    assert [cell.get_text() for cell in table.select("thead tr.by th")] == [
        "id",
        "name",
        "time (ms)",
        "interval",
    ]
    assert [cell.get_text() for cell in table.select("th.number")] == [
        "id",
        "time (ms)",
        "interval",
        "0",
        "1",
    ]
    assert [cell.get_text() for cell in table.select("td.number")] == [
        "10.5",
        "[9.0, 11.2]",
        "NaN",
        "[1, 2]",
    ]
    assert "border" not in table.attrs


def test_what_was_not_measured_leaves_its_column_one_of_numbers() -> None:
    rows = "".join(
        f"<tr><td>{name}</td><td>{cell}</td></tr>"
        for name, cell in (("one", "not measured"), ("two", "1.62"))
    )
    table = (
        f"<table><thead><tr><th>way</th><th>speedup</th></tr></thead><tbody>{rows}</tbody></table>"
    )
    assert [cell.get_text() for cell in page(code(display(html=table))).select("td.number")] == [
        "not measured",
        "1.62",
    ]


def test_styled_table_keeps_its_colours_and_no_other_style() -> None:
    style = (
        "#T_1_row0_col0 { color: red; background: url(http://x/y); position: fixed } body { "
        "display: none } #a, p { color: red }"
    )
    soup = page(
        code(
            display(
                html=f"<style>{style}</style><table id='T_1'><tr><td "
                "id='T_1_row0_col0'>1</td></tr></table>"
            )
        )
    )
    main = soup.find("main")
    assert main and main.find("style").get_text() == "#T_1_row0_col0 { color: red }"  # type: ignore[union-attr]
    assert main.select("table.styled")


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "-1.5",
        "−2",
        "1,024",
        "3.2 ms",
        "55 %",
        "2.95×",
        "1e-6",
        "5 [4, 6]",
        "1.0 ± 0.1",
        "[4, 6]",
        "5.8 GB/s",
        "1,230 samples/s",
        "17.8 million steps",
        ".5",
    ],
)
def test_what_is_a_number(text: str) -> None:
    assert NUMBER.fullmatch(text)


@pytest.mark.parametrize(
    "text", ["", "ddp", "3f9c2ab", "2.13.0+cpu", "1 of them all", "gpt-2", "2026-01-01", "[a, b]"]
)
def test_what_is_not_a_number(text: str) -> None:
    assert not NUMBER.fullmatch(text)


def widget_notebook() -> NotebookNode:
    states = {
        "bar": {"model_name": "FloatProgressModel", "state": {"value": 3.0}},
        "label": {"model_name": "HTMLModel", "state": {"value": "100%"}},
        "tqdm": {
            "model_name": "HBoxModel",
            "state": {"children": ["IPY_MODEL_label", "IPY_MODEL_bar"]},
        },
        "slider": {
            "model_name": "IntSliderModel",
            "state": {"description": "Ranks <N>", "value": 4},
        },
        "choice": {
            "model_name": "DropdownModel",
            "state": {"description": "Model", "index": 1, "_options_labels": ["a", "b"]},
        },
        "out": {
            "model_name": "OutputModel",
            "state": {"outputs": [{"output_type": "stream", "name": "stdout", "text": "inside"}]},
        },
        "box": {
            "model_name": "VBoxModel",
            "state": {"children": [f"IPY_MODEL_{name}" for name in ("slider", "choice", "out")]},
        },
    }

    def view(name: str, text: str) -> NotebookNode:
        data = {"application/vnd.jupyter.widget-view+json": {"model_id": name}, "text/plain": text}
        return new_output("display_data", data=data)

    outputs = [
        view("tqdm", " 0%|   | 0/3"),
        view("box", "VBox(...)"),
        view("lost", "IntSlider(value=7)"),
        view("lost", "a: 50%|█ | 1/2"),
    ]
    state = {
        "application/vnd.jupyter.widget-state+json": {
            "state": states,
            "version_major": 2,
            "version_minor": 0,
        }
    }
    return notebook(code(*outputs), widgets=state)


def test_widgets_become_still() -> None:
    html = LabHTMLExporter().from_notebook_node(widget_notebook())[0]
    soup = BeautifulSoup(str(html), "html.parser")
    assert [row.get_text(" ") for row in soup.select("table.settings tr")] == [
        "Ranks <N> 4",
        "Model b",
    ]
    assert [pre.get_text().strip() for pre in soup.select("pre.output")] == [
        "inside",
        "IntSlider(value=7)",
    ]
    assert "100%" not in soup.get_text()


def test_html_that_needs_scripts_gives_way_to_text() -> None:
    soup = page(code(display(html="<div id=p></div><script>plot()</script>", text="Figure()")))
    assert [pre.get_text().strip() for pre in soup.select("pre.output")] == ["Figure()"]


def test_notebook_itself_is_not_changed() -> None:
    nb = notebook("# T", code(display(svg=SVG), display(text="x")))
    before = nbformat.writes(nb)
    LabHTMLExporter().from_notebook_node(nb)
    assert nbformat.writes(nb) == before


def test_a_number_stays_with_its_unit_but_in_code() -> None:
    main = page("It takes 5 [4, 6] ms, or 10 % of `2 ms`.").find("main")
    assert main and main.get_text().strip() == "It takes 5 [4, 6]\u00a0ms, or 10\u00a0% of 2 ms."
