"""Whole documents: the table that says most of scaling, reStructuredText, notebooks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.analysis.audit import audit
from lab.analysis.audit.markup import find_table
from lab.analysis.audit.notebook import as_text
from lab.analysis.audit.text_table import read_table

SETTINGS = "| flag | meaning | default |\n|---|---|---|\n" + "| a | b | 1 |\n" * 9
SCALING = "| GPUs | step (s) |\n|---|---|\n| 1 | 4.0 |\n| 2 | 2.1 |\n"


def written(folder: Path, text: str, name: str = "t.rst") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_table_of_scaling_goes_before_longer_ones(tmp_path: Path) -> None:
    rates = "| model | img/s |\n|---|---|\n" + "| a | 10 |\n" * 5
    path = written(tmp_path, f"{SETTINGS}\n\n{rates}\n\n{SCALING}", "README.md")
    assert list(read_table(path).columns) == ["GPUs", "step (s)"]
    assert audit(path).assumptions == (), "the others are of something else"
    path = written(tmp_path, f"{SETTINGS}\n\n{rates}", "README.md")
    assert list(read_table(path).columns) == ["model", "img/s"]


def test_one_of_several_tables_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, f"{SCALING}\n\n## Weak\n\n{SCALING}| 4 | 1.1 |\n", "README.md")
    assert audit(path).assumptions[0] == (
        "of 2 tables of results, the one below 'GPUs | step (s)' is read; "
        "give another in a file of its own"
    )
    assert len(read_table(path)) == 3


def test_words_below_a_name_for_a_time_are_no_measurement() -> None:
    words = "| GPUs | Wall |\n|---|---|\n" + "| 1 | memory |\n" * 4
    table = find_table(f"{words}\n\n{SCALING}".splitlines())
    assert table is not None
    assert table.header == ["GPUs", "step (s)"]


def test_ranks_as_columns_and_in_rows_count() -> None:
    wide = "| | 1 GPU | 2 GPUs |\n|---|---|---|\n| time (s) | 4.0 | 2.1 |\n"
    labels = "| run | img/s |\n|---|---|\n| 8x A100 | 10 |\n"
    for text in (wide, labels):
        table = find_table(f"{SETTINGS}\n\n{text}".splitlines())
        assert table is not None
        assert len(table.rows) == 1


SIMPLE = """
Strong scaling
==============

On one node, with :ref:`the usual <settings>` flags:

=====  ==================  =======
GPUs   Time (s)            Speedup
=====  ==================  =======
1      100                 1.0
4      **27**              5.70
       (second try)
=====  ==================  =======

Later.
"""
LIST = """
.. list-table:: Strong scaling
   :header-rows: 1
   :widths: 20 40 40

   * - GPUs
     - Time
       (s)
     - ``Speedup``
   * - 1
     - 100
     - 1.0
   * - 4
     - 27
     - 5.70

No part of it.
"""
CSV = """
.. csv-table:: Strong scaling
   :header: "GPUs", "Time (s)", "Speedup"

   1, 100, 1.0
   4, 27, 5.70

And so on, of course.
"""


@pytest.mark.parametrize("text", [SIMPLE, LIST, CSV])
def test_restructured_text(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    result = audit(path)
    assert set(result.reading) == {"GPUs", "Time (s)", "Speedup"}
    (found,) = [one for one in result.findings if one.rule == "quoted-against-own"]
    assert "5.70x is quoted on 4 ranks, but the table's own times give 3.70x" in found.evidence
    assert "Strong scaling" in read_table(path).attrs["notes"]


def test_a_name_above_several_columns_in_restructured_text(tmp_path: Path) -> None:
    border = "=====  ==================  ======="
    above = "=====  ===========================\n..     Measured\n-----  -----------------------"
    frame = read_table(written(tmp_path, SIMPLE.replace(border, above, 1)))
    assert frame.columns[0] == "GPUs"
    assert list(frame.iloc[:, 2]) == ["1.0", "5.70"]
    assert frame.iloc[1, 1] == "27 (second try)"


def test_lines_of_equals_signs_alone_are_no_table(tmp_path: Path) -> None:
    path = written(tmp_path, "=== ===\n\na b\n\nGPUs time_s\n1 4.0\n2 2.2\n", "log.txt")
    assert list(read_table(path).columns) == ["GPUs", "time_s"]


def notebook(*cells: dict[str, object]) -> str:
    return json.dumps({"cells": cells, "nbformat": 4})


def test_a_notebook(tmp_path: Path) -> None:
    shown = {
        "data": {"text/html": ["<table><tr><th>GPUs<th>s/step</tr>", "<tr><td>1<td>4</table>"]}
    }
    text = notebook(
        {
            "cell_type": "markdown",
            "source": ["# Report\n", "\n", *SCALING.splitlines(keepends=True)],
        },
        {"cell_type": "code", "source": "x = '| a | b |'", "outputs": [shown, {"text": "done"}]},
    )
    frame = read_table(written(tmp_path, text, "report.ipynb"))
    assert frame["step (s)"].tolist() == ["4.0", "2.1"]
    assert "'| a" not in as_text(text), "code is no result"
    only = notebook({"cell_type": "code", "source": "", "outputs": [shown]})
    assert list(read_table(written(tmp_path, only, "n.ipynb")).columns) == ["GPUs", "s/step"]


@pytest.mark.parametrize("text", ['{"cells": 3}', '{"cells": [', '{"cells": [{}]}', "a,b\n1,2"])
def test_what_only_looks_like_a_notebook_stays_as_it_is(text: str) -> None:
    assert as_text(text) == text
