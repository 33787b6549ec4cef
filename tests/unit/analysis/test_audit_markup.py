"""Tables in Markdown and LaTeX, with the text around them."""

from __future__ import annotations

from pathlib import Path

import pytest
from audits import broken, pasted

from lab.analysis.audit.formats import marked_up
from lab.analysis.audit.formats.markdown import without_markup
from lab.analysis.audit.table import from_table
from lab.analysis.audit.text_table import read_table
from lab.errors import InputError


def test_markdown_between_prose() -> None:
    (table,) = marked_up(
        """# Results

An older section about weak scaling.

## Strong scaling

Measured on `one node`.

| **GPUs** | Time \\| step (s) | [Speedup](https://a.b/c) |
|---:|:---|---|
| 1 | 10.0 | **1.0x** |
| 2 | 5.6 |

All rows are medians.

## Later
No part of it.
""".splitlines()
    )
    assert table.header == ["GPUs", "Time | step (s)", "Speedup"]
    assert table.rows == [["1", "10.0", "1.0x"], ["2", "5.6"]]
    assert table.notes == ["Strong scaling", "Measured on `one node`.", "All rows are medians."]


def test_the_longest_table_of_a_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("a | b\n-- | --\n1 | 2\n\nGPUs | s/step\n-- | --\n1 | 4\n2 | 2.2\n")
    assert read_table(path).to_dict("list") == {"GPUs": ["1", "2"], "s/step": ["4", "2.2"]}


def test_a_row_that_is_longer_than_the_names(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_text("a | b\n-- | --\n1 | 2 | 3\n")
    with pytest.raises(InputError, match="3 cells under 2 column names"):
        read_table(path)


LATEX = r"""
\begin{table} \caption{Weak scaling of a \textbf{7B} model.}
\begin{tabular*}{\textwidth}{@{}l p{3cm} rr@{}} % four columns
\toprule
 & & \multicolumn{2}{c}{Time} \\ \cmidrule(lr){3-4}
GPU & \#GPUs & step (ms) & epoch (s) \\
\midrule
\multirow{2}{*}{A100} & 1 & $1{,}024.5 \pm 3$ & 80 \\
 & 2 & \textbf{520} & 41\,\% \\[2pt]
\bottomrule
\end{tabular*}
\end{table}
"""


def test_latex_with_spans_signs_and_a_caption() -> None:
    (table,) = marked_up(LATEX.splitlines())
    assert table.header == ["GPU", "#GPUs", "Time step (ms)", "Time epoch (s)"]
    assert table.rows == [["A100", "1", "1,024.5 ± 3", "80"], ["A100", "2", "520", "41%"]]
    assert table.notes == ["Weak scaling of a 7B model."]


@pytest.mark.parametrize(
    "text",
    [
        "gpus|time_s\n1|12.5\n2|7\n",
        "gpus,time_s\n1,2\n",
        r"\begin{tabular}{c}\end{tabular}",
        "\\begin{tabular}{ll}\na & b",
        "---|---\n",
        "",
    ],
)
def test_what_holds_no_marked_up_table(text: str) -> None:
    assert not marked_up(text.splitlines())


@pytest.mark.parametrize(("before", "scaling"), [("Weak scaling", "weak"), ("Strong", None)])
def test_the_heading_of_a_table_may_say_how_it_scales(
    tmp_path: Path, before: str, scaling: str | None
) -> None:
    path = tmp_path / "t.md"
    path.write_text(f"## {before}\n\n| GPUs | s/step |\n|--|--|\n| 1 | 4 |\n| 2 | 4.1 |\n")
    assert from_table(read_table(path)).scaling == scaling


def test_remarks_after_a_row(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("| a | b |\n| - | - |\n| 1 | 2 | # as before\n| 3 | 4 | expected 2x | |\n")
    assert read_table(path).to_dict("list") == {"a": ["1", "3"], "b": ["2", "4"]}


def test_settings_and_their_values_are_notes_on_the_results() -> None:
    settings = "| Field | Value |\n|---|---|\n| Model | gpt 2B |\n| GBS | 3,072 |\n| LR | 0.1 |\n"
    results = "\n## Progress\n\n| Job | TPS/GPU |\n|---|---|\n| 1 | 489 |\n| 2 | 761 |\n"
    (table,) = marked_up((settings + results).splitlines())
    assert table.header == ["Job", "TPS/GPU"]
    assert table.notes == ["Progress", "Model: gpt 2B", "GBS: 3,072", "LR: 0.1"]
    (alone,) = marked_up(settings.splitlines())
    assert alone.header == ["Field", "Value"]


def test_a_per_cent_sign_that_was_not_escaped() -> None:
    rows = r"1 & 100% & 6 \\" + "\n" + r"4 & 11.5% & 2 \\ % measured twice" + "\n"
    text = r"\begin{tabular}{lll} GPUs & Efficiency & sps \\" + f"\n{rows}" + r"\end{tabular}"
    (table,) = marked_up(text.splitlines())
    assert table.rows == [["1", "100%", "6"], ["4", "11.5%", "2"]]


def test_a_line_right_above_a_table_is_that_table_s_alone() -> None:
    rows = "| GPUs | step (s) |\n|---|---|\n| 1 | 4 |\n| 2 | 2.1 |\n"
    text = f"# Results\n\nResNet-50 on V100:\n\n{rows}* one node\n\n**BERT on A100:**\n\n{rows}\nAs said:\nwarm.\n"
    resnet, bert = marked_up(text.splitlines())
    assert resnet.notes == ["ResNet-50 on V100:", "Results", "* one node"]
    assert bert.notes[0] == "BERT on A100:" and "ResNet-50 on V100:" not in bert.notes
    assert bert.notes[1:] == ["* one node", "As said:", "warm."]


def test_a_header_without_its_last_bar() -> None:
    rows = ["|gpt2|1GPU|19.6|20.4|", "|gpt2|DP|16.6|12.0|"]
    (table,) = marked_up(["|model|type|runtime|sample/sec", "|-|-|-|-|-", *rows])
    assert table.header == ["model", "type", "runtime", "sample/sec"]
    assert table.rows[1] == ["gpt2", "DP", "16.6", "12.0"]


def test_names_with_bars_above_a_line_of_dashes() -> None:
    lines = ["Loop time of 0.08 on 2 procs", "Section | min time | max time | %total", "-" * 40]
    rows = ["Pair    | 0.063    | 0.065    | 76.03", "Other   |          | 0.002    |  2.42"]
    (table,) = marked_up([*lines, *rows, "", "Nlocal: 4000"])
    assert table.header == ["Section", "min time", "max time", "%total"]
    assert table.rows == [["Pair", "0.063", "0.065", "76.03"], ["Other", "", "0.002", "2.42"]]


def test_notes_without_emphasis() -> None:
    lines = [
        "Speedup is the **samples-per-second** ratio.",
        "",
        "| GPUs | s |",
        "|--|--|",
        "| 1 | 2 |",
    ]
    (table,) = marked_up(lines)
    assert table.notes == ["Speedup is the samples-per-second ratio."]


def test_a_sign_in_brackets_begins_no_comment_in_latex() -> None:
    table = r"""\begin{tabular}{rrr}
    ranks & time (s) & efficiency (%) \\
    1 & 10.0 & 100 \\
    4 & 3.1 & 81 \\ % measured again
    \end{tabular}"""
    (found,) = marked_up(table.splitlines())
    assert found.header == ["ranks", "time (s)", "efficiency (%)"]
    assert found.rows == [["1", "10.0", "100"], ["4", "3.1", "81"]]


def test_a_power_is_no_emphasis() -> None:
    assert without_markup("2**20 of **many** `a__b` [c](d) &times;<br>e[^1]") == (
        "2**20 of many a__b c × e"
    )


def test_names_of_groups_above_the_names_of_columns() -> None:
    table = """
|         | OMP |     |     | MPI |     |     |
|---------|-----|-----|-----|-----|-----|-----|
| Threads | Time (s) | FPS | Speedup | Time (s) | FPS | Speedup |
| 1 | 27.0 | 18.5 | 1.00 | 27.2 | 18.4 | 1.00 |
| 2 | 13.9 | 36.0 | 1.94 | 14.4 | 34.8 | {} |
"""
    result = pasted(table.format(1.89))
    assert result.reading["setting"] == "strategy" and not broken(result)
    faulty = pasted(table.format(1.5))
    assert broken(faulty) == {"quoted-against-own"} and "MPI" in str(faulty)


def test_one_quantity_above_numbers_of_processes() -> None:
    table = """
|     |   | Speedup |   |
| --- | - | ------- | - |
| Grid Size / Processes | 1 | 4 | 9 |
| 840x840 | 1 | 3.94 | {} |
| 1680x1680 | 1 | 3.90 | 8.46 |
"""
    assert not broken(pasted(table.format(8.21)))
    assert broken(pasted(table.format(12.3))) == {"super-linear"}
