"""lab report on somebody's table: the command, the page and the PDF."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from bs4 import BeautifulSoup
from pypdf import PdfReader


def lab_command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lab", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_somebodys_table_becomes_a_report(tmp_path: Path) -> None:
    table = tmp_path / "my results.csv"
    table.write_text("<b>model</b>,gpus,time_s\n$a$,1,100\n$a$,2,55\n$a$,4,31\n$a$,8,20\n")
    made = lab_command(
        "report", str(table), "--title", 'A <b>"title"</b> $x^2$', "--gpu-hours", "9", "--json"
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["answer"].startswith("On 8 GPUs, a run is 5.00 times as fast")
    folder = tmp_path / "my results-report"
    page = BeautifulSoup((folder / "report.html").read_text(), "html.parser")
    assert page.h1 is not None and page.h1.get_text() == 'A <b>"title"</b> $x^2$'
    text = page.get_text(" ", strip=True)
    assert "5.00 times as fast as on 1 GPU" in text and "measured here" not in text
    figures = page.find_all("figure")
    assert [figure["id"] for figure in figures] == ["fig-overview-strong"]
    assert "<b>model</b>" in text
    pages = PdfReader(folder / "report.pdf").pages
    assert "Amdahl" in "".join(part.extract_text() for part in pages)


def test_parts_of_a_tables_report_are_files_too(tmp_path: Path) -> None:
    table, folder = tmp_path / "results.csv", tmp_path / "for the proposal"
    table.write_text("gpus,time_s\n1,100\n2,55\n4,31\n8,20\n")
    made = lab_command("report", str(table), "--artifacts", "--out", str(folder))
    assert made.returncode == 0, made.stderr
    parts = folder / "artifacts"
    names = {path.relative_to(parts).as_posix() for path in parts.rglob("*.*")}
    assert names >= {"report.tex", "figures/fig-overview-strong.pdf", "tables/tbl-audit.tex"}
    assert all(os.path.relpath(parts / name) in made.stdout for name in names)
    # The command that repeats this report says where it is.
    assert f"--out '{os.path.relpath(folder)}'" in (parts / "report.md").read_text()


def test_each_table_of_a_text_has_a_report_of_its_own(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    head = "| GPUs | step (s) |\n|---|---|\n"
    text.write_text(f"## A\n\n{head}| 1 | 4 |\n| 2 | 2.1 |\n\n## B\n\n{head}| 4 | 9 |\n| 8 | 5 |\n")
    made = lab_command("report", str(text))
    assert made.returncode == 0, made.stderr
    assert (
        "Read: table 1, under 'A', below 'GPUs | step (s)'; --table N reads another" in made.stderr
    )
    made = lab_command("report", str(text), "--table", "2")
    assert made.returncode == 0 and "Read" not in made.stderr, made.stderr
    page = (tmp_path / "README-table-2-report" / "report.html").read_text()
    assert "8 GPUs" in page and "2 GPUs" not in page and "--table 2" in page
    assert "Table 2 is read, under" in BeautifulSoup(page, "html.parser").get_text()


def test_a_table_that_cannot_be_reported_leaves_nothing(tmp_path: Path) -> None:
    table = tmp_path / "results.csv"
    table.write_text("model,time_s\na,1\nb,2\n")
    made = lab_command("report", str(table))
    assert made.returncode == 2 and "--column world_size=COLUMN" in made.stderr
    assert "Traceback" not in made.stderr and [table] == list(tmp_path.iterdir())
