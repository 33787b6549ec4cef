"""Reading delimited text that others wrote."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lab.analysis.audit.formats.grid import MOST_TABLES
from lab.analysis.audit.text_table import read_table, read_tables
from lab.errors import InputError


def written(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(tmp_path: Path, delimiter: str) -> None:
    frame = read_table(
        written(tmp_path, f"gpus{delimiter}time_s\n1{delimiter}12.5\n2{delimiter}7\n")
    )
    assert frame.to_dict("list") == {"gpus": ["1", "2"], "time_s": ["12.5", "7"]}


@pytest.mark.parametrize(
    "text",
    [
        "gpus step_s\n 1 100\n 2  52\n",
        "gpus  step_s\n\n1     100\n2     52\n",
        "# by hand\n# gpus step_s\n1 100\n2 52\n",
        "# gpus, step_s\n1, 100\n2, 52\n",
    ],
)
def test_columns_of_spaces_and_names_in_a_comment(tmp_path: Path, text: str) -> None:
    frame = read_table(written(tmp_path, text, "t.dat"))
    assert frame.to_dict("list") == {"gpus": ["1", "2"], "step_s": ["100", "52"]}


def test_names_that_hold_spaces(tmp_path: Path) -> None:
    frame = read_table(
        written(tmp_path, "# Size      Avg Latency(us)\n4           2.10\n1024        5.30\n")
    )
    assert frame.to_dict("list") == {"Size": ["4", "1024"], "Avg Latency(us)": ["2.10", "5.30"]}


def test_a_first_name_may_begin_with_a_hash(tmp_path: Path) -> None:
    text = '# by hand\n#GPUs,gpu,tokens\n8,GB200,"12,040"\n16,GB200,"23,800"\n'
    assert list(read_table(written(tmp_path, text)).columns) == ["GPUs", "gpu", "tokens"]
    spaced = "# of GPUs\tStep\tSpeedup\n1\t784 ms\t1.0\n2\t439 ms\t1.8\n"
    assert list(read_table(written(tmp_path, spaced)).columns) == ["of GPUs", "Step", "Speedup"]
    noted = "#H100,BF16\ngpus,step_s\n8,1.5\n16,0.8\n"
    assert list(read_table(written(tmp_path, noted)).columns) == ["gpus", "step_s"]


def test_a_note_above_numbers_is_no_header(tmp_path: Path) -> None:
    assert list(read_table(written(tmp_path, "# measured on one node\n1,2\n100,52\n")).columns) == [
        "1",
        "2",
    ]


def test_decimal_commas_do_not_split_a_semicolon_table(tmp_path: Path) -> None:
    assert list(read_table(written(tmp_path, "gpus;time_s\n1;12,5\n2;7,1\n"))["time_s"]) == [
        "12,5",
        "7,1",
    ]


def test_notes_byte_order_mark_quotes_and_blank_lines(tmp_path: Path) -> None:
    notes = "\ufeff# measured on one node\n#Source: a paper\n"
    text = notes + 'gpus,time\n\n1,"1,384.6"\n# in between\n2,\n'
    frame = read_table(written(tmp_path, text, "scaling.csv"))
    assert frame.attrs == {
        "notes": ["measured on one node", "Source: a paper", "in between"],
        "assumptions": [],
        "name": "scaling",
        "number": 1,
        "place": "",
    }
    assert frame.to_numpy().tolist() == [["1", "1,384.6"], ["2", ""]]


def test_other_encodings(tmp_path: Path) -> None:
    assert list(read_table(written(tmp_path, "gpus,time\n1,2\n".encode("utf-16"))).columns) == [
        "gpus",
        "time",
    ]
    assert list(read_table(written(tmp_path, "gpus,time_µs\n1,2\n".encode("cp1252"))).columns) == [
        "gpus",
        "time_µs",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no header"),
        ("# only a note\n", "no header"),
        ("gpus,time\n", "no header"),
        ("gpus,gpus\n1,2\n", "more than once"),
        ("gpus,time\n1,2,3\n", "line 2: 3 cells under 2 column names"),
        (b"PK\x03\x04\0\0", "not text"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(written(tmp_path, content))


def test_missing_folder_and_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(InputError, match="Is a directory"):
        read_table(tmp_path)
    monkeypatch.setattr("lab.analysis.audit.text_table.MAX_BYTES", 10)
    with pytest.raises(InputError, match="larger than"):
        read_table(written(tmp_path, "gpus,time\n1,2\n"))


def test_the_mapping_is_checked(tmp_path: Path) -> None:
    path = written(tmp_path, "cards,time\n1,2\n")
    assert list(read_table(path, {"world_size": "cards"}).columns) == ["cards", "time"]
    with pytest.raises(InputError, match="did you mean 'cards'"):
        read_table(path, {"world_size": "card"})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200) | st.text(alphabet='1,;\t"#\n\r a|', max_size=80).map(str.encode))
@example(b";\n;")
def test_nothing_but_an_input_error(tmp_path: Path, content: bytes) -> None:
    try:
        frame = read_table(written(tmp_path, content))
    except InputError:
        return
    assert len(frame) > 0 and frame.columns.is_unique


def test_names_in_a_comment_may_have_a_delimiter_of_their_own(tmp_path: Path) -> None:
    text = "#MEASURED WITH DIMENSION 10000\n#Threads|MPI tasks|time\n1\t2\t119.86\n2\t2\t60.15\n"
    frame = read_table(written(tmp_path, text, "omp.txt"))
    assert list(frame.columns) == ["Threads", "MPI tasks", "time"]
    assert frame["time"].tolist() == ["119.86", "60.15"]


def test_measurements_without_names(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="values instead of column names: 1,"):
        read_table(written(tmp_path, "1 119.86\n2 60.15\n4 31.02\n", "t.dat"))


BLOCKS = """Strong scaling
gpus,time_s,speedup
1,100,1
2,52,1.92
4,27,3.7

Weak scaling, again:

gpus,time_s,efficiency
1,10,1
2,12,0.95
"""


@pytest.mark.parametrize("delimiter", [",", ";", "\t", " "])
def test_tables_below_each_other_are_kept_apart(tmp_path: Path, delimiter: str) -> None:
    strong, weak = read_tables(written(tmp_path, BLOCKS.replace(",", delimiter)))
    assert [*strong["speedup"]] == ["1", "1.92", "3.7"]
    assert [*weak.columns] == ["gpus", "time_s", "efficiency"] and len(weak) == 2
    assert strong.attrs["notes"] == ["Strong scaling"]
    assert weak.attrs["place"].startswith("under 'Weak scaling")


def test_rows_below_an_empty_line_belong_to_the_table_above(tmp_path: Path) -> None:
    (frame,) = read_tables(written(tmp_path, "gpus,time_s\n1,10\n\n2,6\n"))
    assert len(frame) == 2


def test_of_tables_below_each_other_a_ragged_one_is_named(tmp_path: Path) -> None:
    (weak,) = read_tables(written(tmp_path, BLOCKS.replace("3.7", "3.7,9")))
    assert len(weak) == 2
    advice = "another table is left out: line 5: 4 cells under 3 column names"
    assert weak.attrs["assumptions"] == [advice]


def test_more_tables_than_a_text_may_have(tmp_path: Path) -> None:
    frames = read_tables(written(tmp_path, BLOCKS * MOST_TABLES))
    assert len(frames) == MOST_TABLES
    assert frames[0].attrs["assumptions"] == [f"only the first {MOST_TABLES} tables are read"]


def test_a_table_below_a_title_with_names_two_tabs_apart(tmp_path: Path) -> None:
    text = "Size: 1000\np\tTime\t\tSpeedup\n1\t42.9\t1.0\n2\t26.9\t1.6\n"
    frame = read_table(written(tmp_path, text, "t.txt"))
    assert frame.to_dict("list") == {
        "p": ["1", "2"],
        "Time": ["42.9", "26.9"],
        "Speedup": ["1.0", "1.6"],
    }
    assert frame.attrs["notes"] == ["Size: 1000"]


def test_names_with_a_mark_each_above_other_comments(tmp_path: Path) -> None:
    text = (
        "# strong scaling\n#nodes \t#nproc #total time\n\n# 48 cores per node\n"
        "2       96      176.7\n8       384     45.1  # again\n32\t1536\t11.9\n"
    )
    frame = read_table(written(tmp_path, text, "t.dat"))
    assert frame.to_dict("list") == {
        "nodes": ["2", "8", "32"],
        "nproc": ["96", "384", "1536"],
        "total time": ["176.7", "45.1", "11.9"],
    }


def test_marked_names_above_cells_several_tabs_apart(tmp_path: Path) -> None:
    text = "#nproc \t#nproc_xi\t# time per step\n24\t2\t\t0.0710\n96\t4\t\t0.0181\n"
    frame = read_table(written(tmp_path, text, "t.dat"))
    assert frame["nproc"].tolist() == ["24", "96"]
    assert frame["time per step"].tolist() == ["0.0710", "0.0181"]


def test_names_of_rows_with_single_spaces(tmp_path: Path) -> None:
    text = "ranks          1      2\ntime (s)  100.31  52.10\nspeedup     1.00   1.93\n"
    frame = read_table(written(tmp_path, text, "t.txt"))
    assert list(frame["ranks"]) == ["time (s)", "speedup"]
    assert list(frame["2"]) == ["52.10", "1.93"]


def test_a_comment_beyond_the_last_column_is_no_cell() -> None:
    frame = read_table(io.StringIO("GPUs,img/s\n1,10\n2,19,# on another node\n4,36\n"))
    assert frame.to_numpy().tolist() == [["1", "10"], ["2", "19"], ["4", "36"]]
