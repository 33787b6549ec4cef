"""Tables as people paste them: from a page, a terminal, a quotation, a job's output."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from lab import cli
from lab.analysis.audit import audit
from lab.analysis.audit.formats import marked_up
from lab.analysis.audit.formats.grid import WIDEST
from lab.analysis.audit.text_table import read_table
from lab.errors import InputError

READ = {"gpus": ["1", "2", "4"], "time_s": ["10.0", "5.6", "3.1"]}
PLAIN = "gpus,time_s\n1,10.0\n2,5.6\n4,3.1\n"
MARKDOWN = "| gpus | time_s |\n|--:|--:|\n| 1 | 10.0 |\n| 2 | 5.6 |\n| 4 | 3.1 |\n"
PAGE = """<html><h2>Strong <b>scaling</b></h2>
<script>document.write("<table><tr><td>evil<td>1</table>")</script><table class="x">
<caption>one node</caption><tr><th>gpus<th>time_s</tr>
<tr><td onclick="alert(1)">1<td><a href="javascript:alert(1)">10.0</a></tr>
<tr><td>2</td><td>5.6<style>td {color: red}</style></td></tr><tr><td>4<td>3.1</table>"""
PSQL = """ gpus | time_s
------+--------
    1 |   10.0
    2 |    5.6
    4 |    3.1
(3 rows)
"""
GRID = """+------+--------+
| gpus | time_s |
+======+========+
| 1    | 10.0   |
+------+--------+
| 2    | 5.6    |
| 4    | 3.1    |
+------+--------+
"""
BOX = """┏━━━━━━┳━━━━━━━━┓
┃ gpus ┃ time_s ┃
┡━━━━━━╇━━━━━━━━┩
│ 1    │ 10.0   │
│ 2    │ 5.6    │
│ 4    │ 3.1    │
└──────┴────────┘
"""


def prefixed(mark: str, text: str = PLAIN) -> str:
    return "".join(f"{mark}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace(",", "\t"),
        MARKDOWN,
        PAGE,
        PSQL,
        GRID,
        BOX,
        prefixed("> ", MARKDOWN),
        f"I measured this on one node:\n\n```\n{PLAIN}```\n\nIs it good, or not?",
        f"I measured this, on one node:\n{PLAIN}",
        f"Results below:\n\n{PLAIN.replace(',', '   ')}",
        prefixed("0: "),
        prefixed("[1,0]<stdout>:"),
        prefixed("Sun Nov 22 18:35:52 2026[1,0]<stdout>: "),
        prefixed("[rank0]: "),
        prefixed("[0] "),
    ],
)
def test_a_paste_is_read_as_the_table_that_it_holds(text: str) -> None:
    assert read_table(io.StringIO(text)).to_dict("list") == READ
    assert read_table(io.BytesIO(text.encode())).to_dict("list") == READ


def test_a_page_tells_what_stands_above_its_table() -> None:
    assert read_table(io.StringIO(PAGE)).attrs["notes"] == ["Strong scaling", "one node"]


def test_cells_of_a_page_that_span_rows_and_columns() -> None:
    (table,) = marked_up(
        """<table><tr><th rowspan="2">GPUs<th colspan="2">Time<tr><th>step (ms)<th>epoch (s)
        <tr><td colspan="3">8x A100<tr><td rowspan="2">1<td>1,024<td>80<tr><td>520<td>41
        <tr><td colspan="3">8x H100<tr><td>2<td>9999<td>1</table>""".splitlines()
    )
    assert table.header == ["GPUs", "Time step (ms)", "Time epoch (s)", "section"]
    assert table.rows == [
        ["1", "1,024", "80", "8x A100"],
        ["1", "520", "41", "8x A100"],
        ["2", "9999", "1", "8x H100"],
    ]


def test_a_cell_cannot_ask_for_endless_columns_or_rows() -> None:
    text = "<table><tr><td colspan='9999' rowspan='9999'>a<td>b<tr><td>1</table>"
    latex = r"\begin{tabular}{l}\multicolumn{99999999}{c}{a} & b \\ 1 & 2 \\ \end{tabular}"
    for table in (*marked_up([text]), *marked_up([latex])):
        assert len(table.header) <= WIDEST + 1


PIECES = [
    "<table>",
    "</table>",
    "<tr>",
    "<td>",
    "<th colspan=3>",
    "<td rowspan='9'>",
    "</td>",
    "<br>",
]
PIECES += [
    "<script>",
    "</script>",
    "<h2>",
    "<!--",
    "-->",
    "<![",
    "&lt;",
    "&#x110000;",
    "1",
    "gpus",
    "|--|",
]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=60))
def test_whatever_a_page_holds_is_a_table_or_none(pieces: list[str]) -> None:
    for table in marked_up("".join(pieces).splitlines()):
        assert len(table.header) > 1 and table.rows


@pytest.mark.parametrize("prefix", ["node01: ", "[1,0]<stdout>:", "0: ", "[0] ", "[rank0]: "])
def test_output_of_nccl_tests_under_any_launcher(prefix: str) -> None:
    lines = [
        "#       size   count  type  redop  root  time  algbw  busbw #wrong  time  algbw busbw #wrong",
        "     1048576  262144 float    sum    -1  99.5  10.54  18.44      0  98.0  10.70 18.72      0",
    ]
    text = "Hello,\n" + "".join(f"{prefix}{line}\n" for line in lines)
    frame = read_table(io.StringIO(text))
    assert frame["busbw_gb_per_s"].tolist() == ["18.44", "18.72"]
    assert set(frame["gpus"]) == {"8"}  # 1.75 times the algorithm's bandwidth is 2 x 7 / 8


@pytest.mark.parametrize(
    ("algorithm", "bus", "ranks"),
    [(240.0, 450.0, "16"), (200.0, 175.0, "8"), (100.0, 100.0, ""), (0.0, 0.0, "")],
)
def test_ranks_follow_from_two_bandwidths(algorithm: float, bus: float, ranks: str) -> None:
    """An all-reduce of 16, a gather of 8; a broadcast has the same of both on any number."""
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = f"1048576 262144 float sum -1 9.9 {algorithm} {bus} 0 9.9 {algorithm} {bus} 0\n"
    assert set(read_table(io.StringIO(head + row))["gpus"]) == {ranks}


def test_the_command_reads_a_paste() -> None:
    bad = PLAIN.replace("3.1", "1.1").replace("time_s", "step time (s)")
    answer = CliRunner().invoke(cli.app, ["audit", "-"], input=bad)
    assert "super-linear" in answer.stdout
    assert isinstance(answer.exception, Exception)
    empty = CliRunner().invoke(cli.app, ["audit", "-"], input="")
    assert isinstance(empty.exception, InputError)
    assert "standard input" in str(empty.exception)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_points_are_those_of_pandas(rows: int) -> None:
    """The slowest rank of each epoch, then the median over epochs but the first of three."""
    import pandas as pd

    draw = random.Random(rows)
    content = [
        {"gpus": 2, "rank": rank, "repeat": repeat, "epoch": epoch, "time_s": draw.uniform(1, 2)}
        for repeat in range(2)
        for epoch in range(rows)
        for rank in range(2)
    ]
    frame = pd.DataFrame(content)
    slowest = frame.groupby(["repeat", "epoch"])["time_s"].max()
    skipped = slowest[slowest.index.get_level_values("epoch") > 0] if rows > 2 else slowest
    from lab.analysis.audit.table import from_table

    (point,) = from_table(frame).points
    assert point.times == pytest.approx(skipped.groupby("repeat").median().tolist())


def test_a_hundred_thousand_configurations_are_grouped_once(tmp_path: Path) -> None:
    """Twice the rows take about twice the calls; a pass of pandas over each would take minutes."""
    import cProfile
    import pstats

    def calls(configurations: int) -> int:
        path = tmp_path / "t.csv"
        rows = [f"m{n},{g},64,{n + 1 + 100 / g}" for n in range(configurations) for g in (1, 2, 4)]
        path.write_text("\n".join(["model,gpus,global batch size,time_s", *rows]))
        profile = cProfile.Profile()
        profile.runcall(audit, path)
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    assert calls(800) - calls(400) < 400 * 3 * 1000


def test_a_page_with_a_cell_on_each_line_is_no_table() -> None:
    cells = ("GPUs", "Best config", "MFU", "1", "7B alone", "57.8%", "2", "7B, FSDP=2", "51.7%")
    text = "\n\n".join(("MFU scaling (dense)", "Best MFU by number of GPUs", *cells))
    with pytest.raises(
        InputError, match=r"fewer words than the first.*each measurement on one line"
    ):
        audit(io.StringIO(text))
