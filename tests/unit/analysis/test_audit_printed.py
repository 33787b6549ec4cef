"""Data frames as pandas and R print them."""

from __future__ import annotations

import pandas as pd
import pytest
from audits import broken, pasted

from lab.analysis.audit.formats.printed import tables

NAMES = ["Nb ranks", "time (s)", "speedup"]
FRAME = pd.DataFrame([[1, 100.31, 1.0], [2, 52.1, 1.93], [4, 27.4, 3.66]], columns=NAMES)
OF_R = """"ranks" "time (s)" "speedup"
"1" 1 100.31 1
"2" 2 52.1 1.93
"3" 4 27.4 3.66
"""
PRINTED_BY_R = """  ranks time.s. speedup
1     1  100.31    1.00
2     2   52.10    1.93
3     4   27.40    3.66
"""


@pytest.mark.parametrize(
    "text",
    [
        FRAME.to_string(),
        FRAME.to_string(index=False),
        FRAME.set_index("Nb ranks").to_string(),
        FRAME.set_index("Nb ranks").T.to_string(),
        f"Results on our cluster:\n\n{FRAME.to_string()}\n\n[3 rows x 3 columns]\nThe end.",
        "\n".join(f"[1,0]<stdout>: {line}" for line in FRAME.to_string().splitlines()),
        OF_R,
        PRINTED_BY_R,
    ],
)
def test_frames(text: str) -> None:
    result = pasted(text)
    assert sorted(result.reading.values()) == ["speedup", "time", "world_size"]
    assert not broken(result)
    assert broken(pasted(text.replace("3.66", "2.66"))) == {"quoted-against-own"}


def test_a_frame_that_is_printed_in_parts() -> None:
    text = FRAME.to_string(line_width=24)
    assert "\\" in text
    (table,) = tables(["Measured twice.", *text.splitlines()])
    assert table.header == NAMES
    assert table.rows == [["1", "100.31", "1.00"], ["2", "52.10", "1.93"], ["4", "27.40", "3.66"]]
    assert table.notes == ["Measured twice."]


def test_columns_with_a_name_for_all_of_them() -> None:
    text = "strategy    ddp   fsdp\nranks\n1         10.00  12.00\n4          2.90   3.20\n"
    (table,) = tables(text.splitlines())
    assert table.header == ["ranks", "ddp", "fsdp"] and table.rows[1] == ["4", "2.90", "3.20"]


def test_names_above_a_rule_with_gaps() -> None:
    text = """$ sacct -j 7 --format="JobID,AllocCPUS,Elapsed,MaxRSS"
JobID         AllocCPUS    Elapsed     MaxRSS
------------ ---------- ---------- ----------
71                 1152   02:25:15
72                 2304   01:15:20     10452K
73                 4608   00:40:11   5266672K
"""
    result = pasted(text)
    assert result.reading == {"AllocCPUS": "world_size", "Elapsed": "time"}
    assert not broken(result)


@pytest.mark.parametrize(
    "text",
    [
        "  indented words of prose\nare no names of 3 numbers 4\n",
        "    | a | b |\n1 2 3\n",
        "  x y\n",
        "\n",
        '"one" "two"\n',
        "a  b\n-- --\n",
        "== ==\na  b\n== ==\n1  2\n== ==\n",
    ],
)
def test_other_lines_are_none(text: str) -> None:
    assert not [*tables(text.splitlines())]


def test_rows_of_a_word_and_numbers_right_below_their_names() -> None:
    rows = [
        "Read: 0.486 s (=54907.3 MBytes/sec)",
        "Function    MBytes/sec  Min (sec)   Max         Average     ",
        "Copy        1751638.9   0.01015     0.03203     0.01082     ",
        "Triad       1730906.3   0.01541     0.03137     0.01633     ",
    ]
    (table,) = tables(rows)
    assert table.header[2:] == ["Min time (s)", "Max time (s)", "Average time (s)"]
    assert table.rows[1][0] == "Triad"


def test_quoted_csv_is_no_printed_table() -> None:
    names = '"ID","Kernel","Time (s)"'
    rows = [f'"{n}","kernel(int, long)","{n}.5"' for n in range(20_000)]
    assert [*tables([names, *rows])] == []


def test_an_index_of_several_words_below_the_name_of_the_columns() -> None:
    lines = ["backend            gloo  nccl", "number of threads"]
    rows = [f"{n}                 {100 * n}.2  {101 * n}.5" for n in (1, 2, 4)]
    (table,) = tables([*lines, *rows])
    assert table.header == ["number of threads", "gloo", "nccl"]


def test_rows_of_ranks_and_numbers_below_prose() -> None:
    text = "We ran this with --num_gpus=1 --steps=9 and --num_gpus=2 --steps=9:\n"
    text += "GPUs   Training time (s)   samples/sec\n1    657    52.7\n2    844    97.3\n"
    assert pasted(text).reading["GPUs"] == "world_size"


def test_titles_above_frames_are_no_rows() -> None:
    frame = FRAME.rename(columns={"Nb ranks": "ranks", "time (s)": "seconds"})
    text = "\n\n".join(f"Strong Scaling - {name}\n{frame.to_string(index=False)}" for name in "AB")
    assert [len(table.reading) for table in pasted(f"Two runs.\n\n{text}\n").tables] == [3, 3]


def test_rows_with_tabs_below_a_rule() -> None:
    lines = ["Processes   Mean time (3 runs (4dp))   Speed-up", "=========   ===   ========"]
    rows = ["1             0.40                      1.0", "2 (one node)  \t 0.25\t\t   1.6"]
    (table,) = tables([*lines, *rows])
    assert table.rows[1] == ["2 (one node)", "0.25", "1.6"]


def test_steps_of_slurm_jobs_count_once_and_a_failed_job_does_not() -> None:
    rows = [
        "JobID           JobName   NNodes   NTasks    Elapsed      State",
        "------------ ---------- -------- -------- ---------- ----------",
    ]
    for job, nodes, elapsed, state in [
        (812345, 1, "05:12:44", "COMPLETED"),
        (812346, 2, "02:41:03", "COMPLETED"),
        (812347, 4, "03:00:01", "TIMEOUT"),
    ]:
        for step, tasks in [("", ""), (".batch", 1), (".exte+", nodes), (".0", 128 * nodes)]:
            cells = f"{'cfd':>10} {nodes:>8} {tasks:>8} {elapsed:>10} {state:>10}"
            rows.append(f"{f'{job}{step}':<12} {cells}")
    result = pasted("\n".join(rows))
    assert "9 Slurm batch, extern or job rows are left out" in result.assumptions
    assert {finding.rule for finding in result.findings} == {"repeats", "baseline"}
    assert not any("COMPLETED" in row for finding in result.findings for row in finding.records)


def test_columns_with_footnotes_below_a_caption_with_commas() -> None:
    lines = [
        "Table 3: Strong scaling of VASP, 512-atom cell, time per SCF iteration",
        "GPUs   Time (s)   Speedup   Efficiency",
        "4      96.4       1.0*      100%",
        "8      51.2       1.88x     94%",
        "16     29.0†      3.32x     83%",
        "32     n/a‡",
        "* Smallest configuration that fits into memory.",
    ]
    assert {"GPUs": "world_size", "Time (s)": "time"}.items() <= pasted(
        "\n".join(lines)
    ).reading.items()


def test_runs_of_linpack_are_rows_of_one_table() -> None:
    rule, thin = "=" * 80, "-" * 80
    names = "T/V                N    NB     P     Q               Time                 Gflops"
    lines = [
        rule,
        "HPLinpack 2.3",
        rule,
        "P      : The number of process rows.",
        "N      :   20000    40000",
    ]
    for n, p, q, time in ((20000, 1, 1, 160.0), (20000, 2, 2, 43.0), (20000, 2, 4, 12.0)):
        row = f"WR00L2L2 {n:>11} {192:>5} {p:>5} {q:>5} {time:>18.2f}              1.2e+02"
        lines += [rule, names, thin, row, "HPL_pdgesv() start time Sat May 15 18:05:59 2021", ""]
        lines += [thin, "||Ax-b||_oo/(eps*N)=   1.7e-02 ...... PASSED"]
    result = pasted("\n".join(lines))
    assert not result.tables and result.reading == {"Time": "time", "ranks": "world_size"}
    assert "super-linear" in broken(result)  # 160 s to 12 s on eight
