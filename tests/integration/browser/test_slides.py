"""Slides of the lessons in a real browser, without a network: all that is on one can be seen and read."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from pypdf import PdfReader

import lab

# With pictures, tables of published numbers, formulas, and a long text.
NAMES = ("02-collectives", "04-strong-scaling", "07-memory-and-sharding")
OVERFLOW = """() => {
  const slide = document.querySelector(".present");
  const boxes = [...slide.querySelectorAll("*")].map((part) => part.getBoundingClientRect());
  return {
    right: Math.max(...boxes.map((box) => box.right)),
    bottom: Math.max(...boxes.map((box) => box.bottom)),
    size: parseFloat(getComputedStyle(slide).fontSize),
  };
}"""

UNFITTED = 'document.querySelectorAll("section > section").forEach((one) => (one.style = ""))'


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_on_a_slide_is_cut_off_or_too_small_to_read(
    scheme: str, chromium: Browser, slides: dict[str, Path]
) -> None:
    context = chromium.new_context(
        color_scheme=scheme,  # type: ignore[arg-type]
        viewport={"width": 1280, "height": 720},
    )
    context.set_offline(True)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for name, path in slides.items():
        requests.clear()
        page.goto(path.as_uri())
        page.wait_for_selector(".deck.ready")
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
        count = page.locator("section > section").count()
        for number in range(count):
            while page.locator(".present .fragment:not(.shown)").count():
                page.keyboard.press("Space")
            seen = page.evaluate(OVERFLOW)
            assert seen["right"] <= 1280 and seen["bottom"] <= 720, (name, number)
            assert seen["size"] >= 20, (name, number)
            page.keyboard.press("Space")
        assert page.locator("#counter").inner_text() == f"{count}/{count}" and count > 10
        assert complaints == []
        assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    context.close()


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = lab.lesson_slides(tmp_path_factory.mktemp("slides"), names=NAMES)
    return {one.file.stem: one.file for one in made}


def test_a_print_has_a_page_for_each_slide(chromium: Browser, slides: dict[str, Path]) -> None:
    page = chromium.new_page()
    for path in slides.values():
        page.goto(path.as_uri())
        page.wait_for_selector(".deck.ready")
        page.evaluate(UNFITTED)  # as where a browser without a window prints at once
        printed = PdfReader(io.BytesIO(page.pdf(prefer_css_page_size=True)))
        assert len(printed.pages) == page.locator("section > section").count()
        assert "afterwards" in printed.pages[1].extract_text(), "a word of the table is broken"
        if path.stem == "04-strong-scaling":
            assert "Exercise 4.5." in printed.pages[7].extract_text(), "the slide is cut off"
    page.close()
