"""Tables in spreadsheets, and names in two lines as spreadsheets and pandas write them."""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

import lab
from lab.analysis.audit.text_table import read_tables
from lab.errors import InputError

Rows = Sequence[Sequence[object]]
Save = Callable[[Mapping[str, Rows]], Path]
STRONG: Rows = [["GPUs", "time (s)"], [1, 100], [2, 52.3], [4, 28.1]]
IN_GROUPS = (
    "GPUs,DDP,,FSDP,\n{},time (s),speedup,time (s),speedup\n1,100,1,110,1\n2,55,1.82,58,1.9\n"
)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Writes a workbook of sheets by name."""

    def made(sheets: Mapping[str, Rows]) -> Path:
        book = openpyxl.Workbook()
        book.remove(book.worksheets[0])
        for name, rows in sheets.items():
            sheet = book.create_sheet(name)
            for row in rows:
                sheet.append(row)
        book.save(tmp_path / "results.xlsx")
        return tmp_path / "results.xlsx"

    return made


def columns(path: Path) -> list[dict[str, list[str]]]:
    return [frame.to_dict("list") for frame in read_tables(path)]


def test_each_sheet_is_a_table_below_its_name(save: Save) -> None:
    remarks = [["Measured in May."], [None], ["See above."]]
    rows = [["GPUs", "time (s)"], [1, 100], [2, 104], [4, 110]]
    path = save({"Strong": rows, "Remarks": remarks, "Weak": rows})
    tables = lab.audit(path).tables
    assert [table.place for table in tables] == [
        f"under {name!r}, below 'GPUs | time (s)'" for name in ("Strong", "Weak")
    ]
    slower = [any(f.rule == "fixed-overhead" for f in table.findings) for table in tables]
    assert slower == [True, False]  # which weak scaling may be
    assert not any("left out" in text for text in tables[0].assumptions)


def test_tables_below_and_beside_each_other_are_told_apart(save: Save) -> None:
    rates = [["GPUs", "img/s"], [1, 90], [2, 170], [4, 300]]
    beside = [[None, *left, None, *right] for left, right in zip(STRONG, rates, strict=True)]
    one, two = columns(save({"May": [[None, "Title of the left"], *beside]}))
    assert one == {"GPUs": ["1", "2", "4"], "time (s)": ["100", "52.3", "28.1"]}
    assert two == {"GPUs": ["1", "2", "4"], "img/s": ["90", "170", "300"]}
    below = [*STRONG, [], ["Of images"], [], *rates]
    assert columns(save({"May": below})) == [one, two]
    assert [frame.attrs["notes"] for frame in read_tables(save({"May": below}))] == [
        ["May"],
        ["May", "Of images"],
    ]


def test_a_title_with_a_comma_is_no_line_of_names(save: Save) -> None:
    path = save({"May": [["GPT-2 on A100, batch 512"], [], *STRONG], "June": STRONG})
    assert [table["time (s)"] for table in columns(path)] == [["100", "52.3", "28.1"]] * 2


def test_a_row_of_units_belongs_to_the_names(save: Save) -> None:
    rows = [["GPUs", "time", "speedup"], [None, "ms", None], [1, 100, 1], [2, 52, 1.9]]
    (table,) = columns(save({"May": rows}))
    assert table == {"GPUs": ["1", "2"], "time (ms)": ["100", "52"], "speedup": ["1", "1.9"]}


@pytest.mark.parametrize("title", ["Weak scaling, one node", "Weak scaling of GPT-2"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("saved", [True, False])
def test_a_title_above_names_is_a_note(title: str, delimiter: str, saved: bool) -> None:
    rows = "GPUs,step time (ms)\n8,200\n16,220\n".replace(",", delimiter)
    if saved:  # by a spreadsheet, which writes all cells of each row
        quoted = f'"{title}"' if delimiter in title else title
        title_row = f"{quoted}{delimiter}\n{delimiter}\n"
    else:
        title_row = f"{title}\n\n"
    (frame,) = read_tables(io.StringIO(title_row + rows))
    assert frame.to_dict("list") == {"GPUs": ["8", "16"], "step time (ms)": ["200", "220"]}
    assert frame.attrs["notes"] == [title]


def test_titles_above_rows_are_sections(save: Save) -> None:
    rows = [["GPUs", "time (s)"], ["DDP"], [1, 100], [2, 52], ["FSDP"], [1, 110], [2, 58]]
    (table,) = columns(save({"May": rows}))
    assert table["section"] == ["DDP", "DDP", "FSDP", "FSDP"]
    assert table["time (s)"] == ["100", "52", "110", "58"]


def test_a_single_column_beside_a_table_belongs_to_it(save: Save) -> None:
    parts = [[size, None, time] for size, time in STRONG]
    (table,) = columns(save({"May": parts}))
    assert table == {"GPUs": ["1", "2", "4"], "time (s)": ["100", "52.3", "28.1"]}


def test_cells_are_what_the_spreadsheet_shows(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    of_day, longer = datetime.time(0, 1, 30), datetime.timedelta(hours=25)
    for row in [
        ["GPUs", "time", "efficiency (%)", "note\nbelow"],
        [1, of_day, 1, 'a "word", two'],
        [2, longer, 0.1 + 0.2, None],
    ]:
        sheet.append(row)
    for place in ("C2", "C3"):
        sheet[place].number_format = "0.0%"
    hidden = book.create_sheet("old")
    hidden.append(["GPUs", "time"])
    hidden.append([1, 2])
    hidden.sheet_state = "hidden"
    book.save(tmp_path / "results.xlsx")
    (table,) = columns(tmp_path / "results.xlsx")
    assert table == {
        "GPUs": ["1", "2"],
        "time": ["00:01:30", "1 day, 1:00:00"],
        "efficiency (%)": ["100%", "30%"],
        "note below": ['a "word", two', ""],
    }


def test_a_row_that_cannot_be_read_is_that_of_the_sheet(save: Save) -> None:
    rows = [["GPUs", "time (s)"], [1, 100], [2, 52, 7], [4, 28]]
    with pytest.raises(InputError, match="sheet 'May': line 3: 3 cells under 2 column names"):
        lab.audit(save({"May": rows}))


def test_what_is_no_workbook_says_what_to_do(save: Save, tmp_path: Path) -> None:
    whole = save({"May": STRONG}).read_bytes()
    (tmp_path / "cut.xlsx").write_bytes(whole[:2000])
    with pytest.raises(InputError, match=r"file: cannot be read as a workbook: .*; save it as CSV"):
        lab.audit(tmp_path / "cut.xlsx")
    with pytest.raises(InputError, match="file: No such file or directory; check the path"):
        lab.audit(tmp_path / "none.xlsx")
    with pytest.raises(InputError, match=r"\.ods files are not read; save it as \.xlsx or CSV"):
        lab.audit(tmp_path / "none.ods")
    with pytest.raises(InputError, match="no sheet holds a table; save it as CSV"):
        lab.audit(save({"May": [["A remark."]]}))


def test_a_sheet_is_read_in_whole_or_not_at_all(
    save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save({"May": STRONG})
    monkeypatch.setattr("lab.analysis.audit.formats.spreadsheet.MOST_ROWS", len(STRONG))
    assert len(lab.records_from(path)) == 3
    monkeypatch.setattr("lab.analysis.audit.formats.spreadsheet.MOST_ROWS", 2)
    with pytest.raises(InputError, match="sheet 'May': more than 2 rows; save it as CSV"):
        lab.audit(path)


def test_a_report_is_made_of_a_sheet(save: Save) -> None:
    path = save({"Strong": STRONG, "Others": [["GPUs", "img/s"], [1, 90], [2, 170]]})
    assert len(lab.records_from(path)) == 3
    assert len(lab.records_from(path, number=2)) == 2


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("title", ["", "Results of May\n\n"])
@pytest.mark.parametrize("first", ["", "GPUs"])
def test_names_of_groups_above_names_are_joined(delimiter: str, title: str, first: str) -> None:
    text = title + IN_GROUPS.format(first).replace(",", delimiter)
    (frame,) = read_tables(io.StringIO(text))
    names = ["DDP time (s)", "DDP speedup", "FSDP time (s)", "FSDP speedup"]
    assert list(frame) == ["GPUs", *names] and len(frame) == 2


def test_columns_of_a_pivot_are_joined() -> None:
    tidy = pd.DataFrame(
        {
            "gpus": [1, 2, 1, 2],
            "strategy": ["ddp", "ddp", "fsdp", "fsdp"],
            "time_s": [100, 55, 110, 58],
            "img/s": [90, 170, 80, 150],
        }
    )
    pivot = tidy.pivot(index="gpus", columns="strategy", values=["time_s", "img/s"])
    (frame,) = read_tables(io.StringIO(pivot.to_csv()))
    assert list(frame) == ["gpus", "time_s ddp", "time_s fsdp", "img/s ddp", "img/s fsdp"]
    assert frame["img/s fsdp"].tolist() == ["80", "150"]


def test_groups_without_rows_are_no_table() -> None:
    with pytest.raises(InputError, match="5 cells under 4 column names"):
        read_tables(io.StringIO(",DDP,,FSDP,\nGPUs,time,speedup,time,speedup\n\n"))


def test_a_first_row_of_words_is_no_group() -> None:
    text = ",time (s),status\nddp,failed,failed\nfsdp,3,done\n"
    (frame,) = read_tables(io.StringIO(text))
    assert list(frame) == ["unnamed 1", "time (s)", "status"] and len(frame) == 2
