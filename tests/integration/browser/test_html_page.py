"""The HTML report in a real browser, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest
from layout import WIDER
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from playwright.sync_api import Browser, Page, expect

from lab.report.html import LabHTMLExporter

FRAME = pd.DataFrame({"name": ["b", "a", "c"], "time (ms)": ["9.5", "1,024.0", "10.25"]})
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="80pt" height="40pt"><style>rect { fill: '
    'teal }</style><rect width="80" height="40"/></svg>'
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ATTACK = (
    f"<script>document.title = 'hit'</script><img src='data:image/png;base64,{PNG}' alt='x' "
    "onload=\"document.title = 'hit'\">"
)


class Opened(NamedTuple):
    page: Page
    requests: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    wide = pd.DataFrame([{f"column {number}": number * 1.5 for number in range(30)}])
    shown = [
        new_output("display_data", data={"text/html": FRAME.to_html()}),
        new_output("display_data", data={"text/html": wide.to_html()}),
        new_output(
            "display_data",
            data={"image/svg+xml": SVG},
            metadata={"image/svg+xml": {"alt": "A bar"}},
        ),
        new_output("display_data", data={"text/html": ATTACK + "<p>after</p>"}),
    ]
    cells = [
        new_markdown_cell(
            "# Title\n\n## Law\n\nInline $\\frac{1}{s}$ and\n\n$$S = \\sqrt{\\frac{a}{b}}$$\n\n"
        ),
        new_markdown_cell("\\begin{align}\na &= \\frac{b}{c} \\\\\nlonger &= d\n\\end{align}"),
        new_markdown_cell(
            "\n\n".join(f"## Part {number}\n\n" + "Text of it. " * 80 for number in range(6))
        ),
        new_code_cell("x = 1", outputs=shown),
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(LabHTMLExporter().from_notebook_node(new_notebook(cells=cells))[0], "utf-8")
    return path


@pytest.fixture(scope="module", params=["light", "dark"])
def watched(request: pytest.FixtureRequest, chromium: Browser) -> Iterator[Opened]:
    """A tab for all tests, as a new one takes longer than most of them."""
    context = chromium.new_context(color_scheme=request.param)
    context.set_offline(True)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda page_request: requests.append(page_request.url))
    page.on(
        "console",
        lambda message: (
            errors.append(message.text) if message.type in {"error", "warning"} else None
        ),
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield Opened(page, requests, errors)
    context.close()


@pytest.fixture
def opened(watched: Opened, report: Path) -> Opened:
    """The report as it opens, whatever an earlier test did to it."""
    page, requests, errors = watched
    page.goto("about:blank")
    page.set_viewport_size({"width": 1280, "height": 900})
    requests.clear()
    errors.clear()
    page.goto(report.as_uri())
    page.evaluate("document.fonts.ready")
    return watched


def test_page_opens_offline_without_a_request_or_a_complaint(opened: Opened, report: Path) -> None:
    assert [url for url in opened.requests if not url.startswith("data:")] == [report.as_uri()]
    assert opened.errors == []
    assert opened.page.title() == "Title"
    assert opened.page.get_by_text("after", exact=True).is_visible()


def test_formulas_have_a_size_and_their_font(opened: Opened) -> None:
    boxes = [math.bounding_box() for math in opened.page.locator("math").all()]
    assert len(boxes) == 3 and all(box and box["width"] > 5 and box["height"] > 10 for box in boxes)
    loaded = (
        "[...document.fonts].map((font) => font.family.replaceAll('\"', '') + ' ' + font.status)"
    )
    assert opened.page.evaluate(loaded) == ["Lab Math loaded"]
    first, second = (
        opened.page.locator("mtr").nth(row).locator("mo", has_text="=").bounding_box()
        for row in (0, 1)
    )
    assert first and second and first["x"] == pytest.approx(second["x"], abs=1)


def test_figures_are_drawn_and_described(opened: Opened) -> None:
    figure = opened.page.get_by_role("img", name="A bar")
    assert (
        figure.evaluate("(image) => image.complete && image.naturalWidth") == 107
    )  # 80 points in pixels


def column(page: Page, number: int) -> list[str]:
    return (
        page.locator("table").first.locator(f"tbody tr td:nth-of-type({number})").all_inner_texts()
    )


def test_tables_sort_by_value(opened: Opened) -> None:
    head = opened.page.get_by_role("button", name="time (ms)")
    head.click()
    assert column(opened.page, 2) == ["1,024.0", "10.25", "9.5"]
    assert opened.page.locator("th[aria-sort=descending]").count() == 1
    head.press("Enter")
    assert column(opened.page, 2) == ["9.5", "10.25", "1,024.0"]
    opened.page.get_by_role("button", name="name").click()
    assert column(opened.page, 1) == ["a", "b", "c"]


@pytest.mark.parametrize("width", [390, 768, 1024, 1440])
def test_nothing_is_wider_than_its_column(opened: Opened, width: int) -> None:
    opened.page.set_viewport_size({"width": width, "height": 800})
    expect(opened.page.locator("table.stacked")).to_have_count(1)  # the one of 30 columns
    assert opened.page.evaluate(WIDER) == []
    first = opened.page.locator("table.stacked td").first
    label = first.evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert "column 0" in label and first.inner_text() == "0.0"


def test_a_table_that_is_a_little_too_wide_is_printed_small(opened: Opened) -> None:
    narrow = """(less) => {
      const box = document.querySelector(".table-box"), table = box.querySelector("table");
      table.classList.remove("small", "stacked");
      box.style.width = "10px";
      box.style.width = `${box.scrollWidth - less}px`;
      dispatchEvent(new Event("resize"));
      return ["small", "stacked"].filter((name) => table.classList.contains(name));
    }"""
    classes = {less: opened.page.evaluate(narrow, less) for less in (0, 4, 100)}
    assert classes == {0: [], 4: ["small"], 100: ["small", "stacked"]}


def test_what_fits_on_paper_is_printed_as_a_table_with_whole_words(opened: Opened) -> None:
    tables = opened.page.locator("table")
    assert ["whole" in table.get_attribute("class") for table in tables.all()] == [True, False]
    opened.page.set_viewport_size({"width": 100, "height": 800})
    expect(opened.page.locator("table.stacked")).to_have_count(2)
    note = """() => addEventListener("beforeprint", () => {
      window.printed = [...document.querySelectorAll("table")].map((table) => table.matches(".stacked"));
    })"""
    opened.page.evaluate(note)
    opened.page.pdf()
    assert opened.page.evaluate("window.printed") == [False, True]
    expect(opened.page.locator("table.stacked")).to_have_count(2)
    # In a window so wide that neither is a list, paper is still narrow.
    opened.page.evaluate(
        "document.querySelectorAll('.stacked').forEach((one) => one.classList.remove('stacked'))"
    )
    opened.page.pdf()
    assert opened.page.evaluate("window.printed") == [False, True]


def test_contents_stay_beside_the_text_or_fold_above_it(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("link", name="Part 5").click()
    assert (
        page.locator("h2", has_text="Part 5").evaluate(
            "(heading) => heading.getBoundingClientRect().top"
        )
        < 200
    )
    # The page folds its contents when it hears of its new width, which takes a moment.
    expect(page.get_by_role("link", name="Part 0")).to_be_visible()
    page.set_viewport_size({"width": 420, "height": 800})
    expect(page.get_by_role("link", name="Part 0")).to_be_hidden()
    page.locator("#contents summary").click()
    expect(page.get_by_role("link", name="Part 0")).to_be_visible()


CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = (tag) => {
    for (; tag; tag = tag.parentElement) {
      const colour = getComputedStyle(tag).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(0, 0, 0)" : "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("main *, nav *")].filter((tag) => tag.innerText && tag.innerText.trim()).map((tag) => {
    const [a, b] = [light(getComputedStyle(tag).color), light(behind(tag))].sort((x, y) => y - x);
    return [(a + .05) / (b + .05), tag.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


def test_text_has_contrast(opened: Opened) -> None:
    assert opened.page.evaluate(CONTRAST) == []


def test_page_works_without_script(chromium: Browser, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.get_by_role("link", name="Part 0").is_visible()
    assert page.get_by_role("columnheader", name="time (ms)").is_visible()
    assert page.get_by_role("button").count() == 0
    context.close()
