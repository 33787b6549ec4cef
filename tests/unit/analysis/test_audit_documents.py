"""Whole documents: the table that says most of scaling, reStructuredText, notebooks."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from lab.analysis.audit import audit
from lab.analysis.audit.formats import marked_up
from lab.analysis.audit.formats.notebook import as_text
from lab.analysis.audit.text_table import read_table, read_tables
from lab.analysis.reported import records_from
from lab.errors import InputError

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


def test_all_tables_that_say_as_much_are_audited(tmp_path: Path) -> None:
    weak = "| GPUs | step (s) | efficiency |\n|---|---|---|\n| 1 | 1.0 | 1 |\n| 2 | 1.2 | 0.95 |\n"
    path = written(tmp_path, f"{SCALING}\n\n## Weak\n\n{weak}", "README.md")
    whole = audit(path)
    strong, weak_scaling = whole.tables
    assert (strong.trustworthy, weak_scaling.trustworthy) == (True, False)
    assert weak_scaling.place == "under 'Weak', below 'GPUs | step (s) | efficiency'"
    (finding,) = weak_scaling.findings[:1]
    assert finding.rule == "quoted-against-own"
    assert whole.findings[0].records == tuple(f"table 2, {row}" for row in finding.records)
    assert set(whole.checked) == {*strong.checked, *weak_scaling.checked}
    assert not set(whole.checked) & {rule.rule for rule in whole.not_checked}
    summary, index, *_ = str(whole).splitlines()
    assert "in 2 tables: 1 warning" in summary
    assert index == "warning quoted-against-own in table 2"
    assert "table 2, under 'Weak', below" in str(whole)
    assert whole._repr_html_().count("<table>") == 2
    assert audit(path, columns={"efficiency": "efficiency"}).tables == (), "only one has it"


def test_a_table_that_cannot_be_read_is_named_beside_another(tmp_path: Path) -> None:
    uneven = "| GPUs | step (s) |\n|---|---|\n| 1 | 4.0 | 5 |\n"
    path = written(tmp_path, f"{SCALING}\n\n## Weak\n\n{uneven}", "README.md")
    advice = "another table is left out: row 1: 3 cells under 2 column names"
    assert audit(path).assumptions == (advice,)


def test_one_of_several_tables_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, f"{SCALING}\n\n## Weak\n\n{SCALING}| 4 | 1.1 |\n", "README.md")
    frame = read_table(path)
    assert len(frame) == 3
    assert frame.attrs["assumptions"][0] == (
        "table 2 is read, under 'Weak', below 'GPUs | step (s)'; --table N reads another"
    )


def test_one_of_several_tables_is_read_by_its_number(tmp_path: Path) -> None:
    weak = "| GPUs | step (s) | s |\n|---|---|---|\n| 2 | 4.0 | 1 |\n| 4 | 4.1 | 1 |\n| 8 | 4.2 | 1 |\n"
    path = written(tmp_path, f"{SCALING}\n\n## Weak\n\n{weak}", "README.md")
    assert [len(read_table(path, number=number)) for number in (1, 2)] == [2, 3]
    assert {record.run.world_size for record in records_from(path, number=1)} == {1, 2}
    assert {record.run.world_size for record in records_from(path)} == {2, 4, 8}
    one = audit(path, number=2)
    assert one.tables == () and one.reading == audit(path).tables[1].reading
    # The number stays when only tables with some column are read.
    (only,) = read_tables(path, {"std": "s"})
    assert only.attrs["number"] == 2
    with pytest.raises(InputError, match=r"README\.md: table: holds 2 tables of results, not 3"):
        read_table(path, number=3)
    with pytest.raises(InputError, match=r"columns.std: no column 's'"):
        audit(path, number=1, columns={"std": "s"})
    with pytest.raises(InputError, match="number: is only for the tables of a text"):
        audit(read_table(path), number=1)


def test_words_below_a_name_for_a_time_are_no_measurement() -> None:
    words = "| GPUs | Wall |\n|---|---|\n" + "| 1 | memory |\n" * 4
    (table,) = marked_up(f"{words}\n\n{SCALING}".splitlines())
    assert table.header == ["GPUs", "step (s)"]


def test_ranks_as_columns_and_in_rows_count() -> None:
    wide = "| | 1 GPU | 2 GPUs |\n|---|---|---|\n| time (s) | 4.0 | 2.1 |\n"
    labels = "| run | img/s |\n|---|---|\n| 8x A100 | 10 |\n"
    for text in (wide, labels):
        (table,) = marked_up(f"{SETTINGS}\n\n{text}".splitlines())
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


MEGATRON = "\n".join(
    f" [2024-05-01 10:00:0{n}] iteration        {n}/     100 | consumed samples: {128 * n:12d} | "
    f"elapsed time per iteration (ms): {time} | throughput per GPU (TFLOP/s/GPU): 375.1 | "
    f"learning rate: 1.1E-05 | global batch size:   128 | lm loss: 1.05{n}E+01 | grad norm: 11.3 |"
    for n, time in enumerate((30451.2, 4451.2, 4431.2, 4461.2), start=1)
)
TITAN = "\n".join(
    f"[rank0]:[titan] 2025-01-01 10:00:{n}0,000 - root - INFO - step: {n}0  loss: 10.24{n}1  "
    f"memory: 47.43GiB(60.15%)  tps: 5,81{n}  tflops: 336.5  mfu: 34.02%"
    for n in range(1, 5)
)
PRINTED = {
    "nanogpt": "\n".join(
        f"iter {n}: loss {9 - n}.5, time {240 + n}.1ms, mfu 35.1%" for n in range(4)
    ),
    "deepspeed": "\n".join(
        f"steps: {n} loss: 7.{n} iter time (s): 3.2{n} samples/sec: 39.{n}" for n in range(4)
    ),
    "torchvision": "\n".join(
        f"Epoch: [0]  [  {n}0/1251]  eta: 0:10:00  lr: 0.0001  loss: 6.{n} (6.9)  time: 0.3{n}  "
        "data: 0.001  max mem: 3456"
        for n in range(4)
    ),
    "dictionaries": "\n".join(
        f"{{'loss': 1.{n}, 'step_time': 0.5{n}, 'step': {n}}}" for n in range(4)
    ),
    "json": "\n".join(f'{{"step": {n}, "loss": 1.{n}, "time_ms": 27.{n}}}' for n in range(4)),
}


@pytest.mark.parametrize("text", PRINTED.values(), ids=list(PRINTED))
def test_logs_of_training(tmp_path: Path, text: str) -> None:
    log = f"Warning: nothing is cached.\n{text}\nDone in 3 minutes: 4 steps.\n"
    read = audit(written(tmp_path, log, "train.log")).reading.values()
    assert {"step", "loss"} <= set(read)
    assert "time" in read


def test_a_log_of_megatron(tmp_path: Path) -> None:
    result = audit(written(tmp_path, f"using world size: 16\n{MEGATRON}\n", "out.log"))
    assert set(result.reading.values()) == {
        *("step", "time", "flops_per_rank", "global_batch_size", "loss"),
    }
    # Nothing is claimed of the lines of a log.
    assert result.trustworthy
    (found,) = [one for one in result.findings if one.rule == "cold-start"]
    assert "The first step takes 30.45 s" in found.evidence


def test_lines_of_several_ranks(tmp_path: Path) -> None:
    frame = read_table(written(tmp_path, TITAN, "titan.log"))
    names = ["rank", "step", "loss", "memory", "tps", "tflops", "mfu"]
    cells = ["0", "10", "10.2411", "47.43GiB", "5,811", "336.5", "34.02%"]
    assert frame.loc[0].to_dict() == dict(zip(names, cells, strict=True))
    lines = [
        f"[rank{n % 2}]: step {n // 2} loss 3.2 step_time 0.{5 + 2 * (n % 2)}0s" for n in range(8)
    ]
    result = audit(written(tmp_path, "\n".join(lines), "ranks.log"))
    assert "rank-imbalance" in {one.rule for one in result.findings}
    assert "two-writers" in result.checked
    assert "two-writers" not in {one.rule for one in result.findings}


def test_results_in_lines_of_names_and_values(tmp_path: Path) -> None:
    rows = "".join(
        f"RESULT world_size={n} epoch_s={t} ok\n" for n, t in ((1, 100.0), (2, 52), (4, 20))
    )
    result = audit(written(tmp_path, f"== sweep ==\n{rows}", "sweep.txt"))
    assert result.reading == {"world_size": "world_size", "epoch_s": "time"}
    assert "super-linear" in {one.rule for one in result.findings}


RECORDS = [
    {"gpus": 1, "time_s": 100, "run": {"speedup": 1}},
    {"gpus": 4, "time_s": 27, "run": {"speedup": 5.7}},
]


@pytest.mark.parametrize(
    "content",
    [
        RECORDS,
        {"machine": "a", "results": RECORDS},
        {"one": RECORDS[0], "four": RECORDS[1]},
        {"gpus": [1, 4], "time_s": [100, 27], "run speedup": [1, 5.7]},
    ],
)
def test_records_in_json(tmp_path: Path, content: object) -> None:
    result = audit(written(tmp_path, json.dumps(content), "results.json"))
    assert {"gpus", "time_s", "run speedup"} <= set(result.reading)
    assert "quoted-against-own" in {one.rule for one in result.findings}


def test_in_a_log_a_step_may_wait_and_the_clock_goes_on(tmp_path: Path) -> None:
    rows = [f"{n},{10.0 * n},0.5,{0.2 if n == 5 else 0.001},3{n}" for n in range(1, 10)]
    path = written(tmp_path, "step,elapsed_s,step_s,data_s,gpu\n" + "\n".join(rows), "log.csv")
    result = audit(path)
    assert set(result.reading.values()) == {"step", "time", "data"}
    assert "data-stall" not in {one.rule for one in result.findings}
    slow = path.read_text().replace("0.001", "0.2")
    assert "data-stall" in {one.rule for one in audit(written(tmp_path, slow, "slow.csv")).findings}


def test_steps_of_unequal_lengths_have_unequal_flops(tmp_path: Path) -> None:
    def log(*mfu: float) -> set[str]:
        rows = [f"{n},4,1000,{share}" for n, share in enumerate(mfu, start=1)]
        text = "step,world_size,tokens/s,mfu (%)\n" + "\n".join(rows)
        return {one.rule for one in audit(written(tmp_path, text, "log.csv")).findings}

    assert "mfu-consistent" not in log(30, 32.1, 29.0, 31.2, 33.5, 28.7)
    assert "mfu-consistent" in log(30, 30, 30, 30, 33.5, 30)


def test_lines_for_each_sample_of_a_step_are_no_second_writer(tmp_path: Path) -> None:
    text = "step,sample\n" + "".join(f"{n // 2},{n * 7 % 5}\n" for n in range(8))
    result = audit(written(tmp_path, text, "rewards.csv"))
    assert "two-writers" not in {one.rule for one in result.findings}


def test_a_table_with_ranks_as_columns_is_one_of_scaling() -> None:
    wide = "| grid | 1 rank | 2 ranks |\n|---|---|---|\n| 64 | 4.0 | 2.1 |\n| 128 | 9.0 | 4.4 |\n"
    words = "| what | 1 GPU | 8 GPUs |\n|---|---|---|\n" + "| use | a laptop | a node |\n" * 4
    for text in (wide, wide.replace("1 rank", "ranks=1").replace("2 ranks", "ranks=2")):
        table, _ = marked_up(
            f"{words}\n\n{text}\n\n{SCALING.replace('| 2 | 2.1 |', '')}".splitlines()
        )
        assert table.header[0] == "grid"


@pytest.mark.parametrize(
    "text",
    [
        "config,gpus,step_s\ntp=4 pp=2,32,1.2\ntp=2 pp=2,32,1.5\ntp=1 pp=2,32,1.9\n",
        "config gpus step_s\ntp=4/pp=2/ 32 1.2\ntp=2/pp=2/ 32 1.5\ntp=1/pp=2/ 32 1.9\n",
        "run;gpus;s\nstep 10: x=1 y=2;1;10\nstep 11: x=1 y=2;2;5.5\nstep 12: x=1 y=2;4;3\n",
    ],
)
def test_a_table_with_settings_in_cells_is_no_log(text: str) -> None:
    names = re.split("[,; ]", text.splitlines()[0])
    assert list(read_table(io.StringIO(text)).columns) == names


def test_tables_in_the_code_blocks_of_a_page() -> None:
    blocks = "".join(
        f"## {title}\n\nOn one node:\n\n```\nGPUs  step_s  speedup\n1  0.40  1.00\n4  0.11  {last}\n```\n"
        for title, last in (("FP32", "3.64"), ("BF16", "3.99"))
    )
    settings = "| Variable | Default | Purpose |\n|---|---|---|\n| `NB` | 384 | block |\n\n"
    result = audit(io.StringIO(f"{settings}```bash\nmake run 2 3\n```\n{blocks}"))
    assert [table.place for table in result.tables] == [
        f"under '{title}', below 'GPUs | step_s | speedup'" for title in ("FP32", "BF16")
    ]
    (fault,) = (finding for finding in result.findings if finding.severity != "note")
    assert fault.rule == "quoted-against-own" and "table 2" in fault.records[0]
