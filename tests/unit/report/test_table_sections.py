"""Sections of the report on somebody's table: what they show, and what they leave out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib import figure as canvas

from lab.errors import InputError
from lab.records.schema import Unit
from lab.report import blocks as report_blocks
from lab.report import table_sections
from lab.report.blocks import Figure, Markdown, Table
from lab.report.build import report_table


@pytest.fixture(autouse=True)
def _unsaved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are drawn and not saved, which takes as long: no test here reads an SVG."""
    monkeypatch.setattr(canvas.Figure, "savefig", lambda _, to, **__: to.write("<svg/>"))


SECTIONS = ("head", "scaling", "parts", "stop", "request", "audit", "method", "reproduce")


def undrawn(draw: object, alt: str, *, height: float, **said: str) -> Figure:
    return Figure("<svg/>", alt, **said)


def page(path: Path, *, draws: bool = False, **options: object) -> list[object]:
    """All blocks of a table's page; figures are drawn on demand, which takes longer than the rest."""
    report = table_sections.load(str(path), command="lab report x", **options)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        if not draws:
            patch.setattr(report_blocks, "drawn", undrawn)
        return [block for name in SECTIONS for block in getattr(table_sections, name)(report)]


def prose(blocks: list[object]) -> str:
    return "\n".join(block.markdown for block in blocks if isinstance(block, Markdown)).replace(
        "\\", ""
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "results.csv"
    path.write_text(text)
    return path


def test_strong_and_weak_are_two_sections_with_figures_of_their_own(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "scaling,gpus,global_batch,step_time_ms\nstrong,1,256,800\nstrong,2,256,430\n"
        "strong,4,256,240\nweak,1,64,200\nweak,4,256,215\n",
    )
    blocks = page(path, draws=True)
    labels = [block.label for block in blocks if isinstance(block, Figure)]
    assert labels == ["fig-overview-strong", "fig-overview-weak"]
    text = prose(blocks)
    assert "## Strong scaling" in text and "## Weak scaling" in text
    assert "Gustafson" in text and "Amdahl" in text


@pytest.mark.parametrize(
    ("head", "product"),
    [
        ("mpi_ranks,threads", "time x ranks x threads"),
        ("gpus,threads", "time x GPUs."),
        ("nodes,threads", "time x nodes."),
    ],
)
def test_the_cost_says_what_it_multiplies(tmp_path: Path, head: str, product: str) -> None:
    path = written(tmp_path, f"{head},time_s\n1,8,100\n2,8,60\n")
    tables = [block for block in page(path) if isinstance(block, Table)]
    (cost,) = [table for table in tables if table.label.startswith("tbl-cost")]
    assert product in f"{cost.caption}."


def test_a_notebook_executed_by_hand_names_no_command(tmp_path: Path) -> None:
    path = written(tmp_path, "world_size,step_time\n1,0.1\n2,0.06\n")
    for command in ("", "lab report x"):
        report = table_sections.load(str(path), command=command)
        assert ("Reproduce" in prose([*table_sections.reproduce(report)])) == bool(command)


def test_nothing_is_said_to_be_measured_and_nothing_is_invented(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, "gpus,time_s\n1,100\n2,55\n4,31\n8,20\n"))
    everything = prose(blocks) + "\n".join(
        f"{block.caption}\n{block.frame.to_string()}"
        for block in blocks
        if isinstance(block, Table)
    )
    everything += " ".join(b.alt + b.caption for b in blocks if isinstance(b, Figure))
    assert not re.search(
        r"measured here|not measured|batch \d|samples/s|\bnan\b|\bNone\b", everything
    )
    assert "## Where the time goes" not in everything  # the table gives no parts
    assert "8 GPUs" in everything and "nothing was run" in everything


def test_a_table_of_one_configuration_does_not_call_it_as_its_file(tmp_path: Path) -> None:
    def captions(text: str) -> str:
        blocks = page(written(tmp_path, text), request=(10, "GPU"))
        return " ".join(block.caption for block in blocks if isinstance(block, Table))

    assert "All: " not in captions("gpus,time_s\n1,100\n2,55\n")
    assert captions("model,gpus,time_s\nBERT,1,100\nBERT,2,55\n").count("All: BERT") == 2


def test_a_configuration_has_no_rows_of_another_that_is_its_baseline(tmp_path: Path) -> None:
    text = "strategy,gpus,global_batch,step_ms\n{},1,64,800\nddp,2,64,420\nfsdp,2,64,450\n"
    sizes = {}
    for first in ("ddp", "single"):
        blocks = page(written(tmp_path, text.format(first)))
        tables = {block.label: block.frame for block in blocks if isinstance(block, Table)}
        results = tables["tbl-results-strong"]
        sizes[first] = list(zip(results["configuration"], results["GPUs"], strict=True))
        assert "1.78" in set(results.iloc[:, 3]), "fsdp is compared with one GPU"
        borrowed = "As the baseline, fsdp on 1 GPU is that of ddp." in prose(blocks)
        assert borrowed == (first == "ddp")
    assert sizes["ddp"] == [("ddp", "1"), ("ddp", "2"), ("fsdp", "2")]
    assert ("fsdp", "1") in sizes["single"], "a run that is no curve stands for each that needs it"


def test_times_that_tell_no_kind_of_scaling_get_no_speedup(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, "ranks,step_ms\n1,100\n2,104\n4,111\n"))
    text = prose(blocks)
    assert "no speedup can be stated" in text and "## Where to stop" not in text
    assert [b.label for b in blocks if isinstance(b, Figure)] == ["fig-overview"]


def test_an_epoch_at_one_batch_per_rank_is_said_to_hold_the_same_samples(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,batch_per_gpu,epoch_s\n1,32,100\n2,32,104\n")
    assert "'epoch_s' is read as the time for the same samples" in prose(page(path))
    assert "same samples" not in prose(page(path, scaling="weak"))
    path = written(tmp_path, "gpus,batch_per_gpu,step_s\n1,32,100\n2,32,104\n")
    assert "same samples" not in prose(page(path))


def test_parts_of_the_time_are_shown_with_their_share(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "gpus,step_ms,compute_ms,communication_ms,global_batch_size\n"
        "1,1300,1298,0,8\n2,800,788,12,8\n",
    )
    (table,) = [b for b in page(path) if isinstance(b, Table) and b.label == "tbl-parts"]
    assert table.frame["communication"].iloc[1] == "12 ms (1.50 %)"
    assert list(table.frame["compute"]) == ["1.298 s (99.8 %)", "0.788 s (98.5 %)"]


def test_gpu_hours_are_multiplied_out(tmp_path: Path) -> None:
    path = written(tmp_path, "gpus,run_time_h\n1,10\n2,5.5\n4,3\n")
    text = prose(page(path, request=(120, "GPU")))
    assert "10 runs x 3 h x 4 GPUs = 120 of the 120 GPU-hours" in text


@pytest.mark.parametrize(
    ("columns", "applied", "product", "each_rank"),
    [
        ("nodes", (30, "node"), "10 runs x 1 h x 3 nodes = 30.0 of the 30 node-hours", False),
        (
            "Anzahl Kerne",
            (30, "core"),
            "10 runs x 1 h x 3 cores = 30.0 of the 30 core-hours",
            False,
        ),
        ("mpi_ranks", (30, "core"), "10 runs x 1 h x 3 ranks = 30.0 of the 30 core-hours", True),
        (
            "omp_threads,mpi_ranks",
            (30, "core"),
            "2 runs x 1 h x 3 ranks x 4 threads = 24.0 of the 30 core-hours",
            False,
        ),
    ],
)
def test_hours_are_of_what_the_table_counts(
    tmp_path: Path, columns: str, applied: tuple[float, Unit], product: str, each_rank: bool
) -> None:
    threads = "4," * ("," in columns)
    path = written(tmp_path, f"{columns},run_time_h\n{threads}1,2.5\n{threads}3,1\n")
    report = page(path, request=applied)
    assert product in prose(report)
    assert ("each rank counts as one core" in prose(report)) is each_rank


def test_what_a_user_writes_is_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)> $x^2$ #let *b*"
    path = written(
        tmp_path, f"{evil},gpus,time_s\n{evil},1,100\n{evil},2,60\nother,1,9\nother,2,5\n"
    )
    for block in page(path, title=evil):
        if isinstance(block, Markdown):
            assert "<img" not in block.markdown.replace(r"\<img", "")
        elif isinstance(block, Table):
            assert "<img" not in block._repr_html_()


def test_hours_of_nodes_whose_gpus_nobody_knows_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "nodes,time_s\n1,100\n2,60\n")
    with pytest.raises(InputError, match="counts nodes, not GPUs"):
        report_table(path, gpu_hours=10)
    with pytest.raises(InputError, match="cannot be"):
        report_table(path, gpu_hours=0)
    with pytest.raises(InputError, match="node-hours and core-hours are both given"):
        report_table(path, node_hours=1, core_hours=1)
    ranks = written(tmp_path, "ranks,time_s\n1,100\n2,60\n")
    with pytest.raises(InputError, match="counts ranks, not nodes"):
        report_table(ranks, node_hours=10)
    assert not (tmp_path / "results-report").exists()


PARAMETERS = "strategy,precision,gpus,global_batch_size,step_time_ms,params\n"


@pytest.mark.parametrize(
    ("strategy", "precision", "is_known"),
    [("ddp", "fp32", True), ("ddp", "bf16", False), ("fsdp", "fp32", False)],
)
def test_gradients_are_those_of_the_table_s_precision_and_strategy(
    tmp_path: Path, strategy: str, precision: str, is_known: bool
) -> None:
    times = zip((1, 2, 4, 8), (640, 340, 190, 115), strict=True)
    rows = (f"{strategy},{precision},{n},256,{ms},25.6M\n" for n, ms in times)
    text = prose(page(written(tmp_path, PARAMETERS + "".join(rows))))
    assert ("its gradients (102 MB)" in text) == is_known
    assert ("counted as 4 bytes" in text) == is_known


def test_columns_of_strategies_and_precisions_are_all_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "GPUs,DDP FP32 (s/epoch),DDP BF16 (s/epoch),ZeRO-3 BF16 (s/epoch)\n"
        "1,1200,640,660\n2,620,340,360\n4,330,190,205\n",
    )
    blocks = page(path, draws=True)
    tables = {block.label: block.frame for block in blocks if isinstance(block, Table)}
    names = list(dict.fromkeys(tables["tbl-results-strong"]["configuration"]))
    assert names == ["fp32, ddp", "bf16, ddp", "bf16, zero 3"]
    read = dict(tables["tbl-columns"].to_numpy().tolist())
    assert read["ZeRO-3 BF16 (s/epoch)"] == "time" and read["GPUs"] == "world_size"
    assert "No quantity" not in prose(blocks) and "is read as the time, and not" not in prose(
        blocks
    )


def test_a_setting_that_says_nothing_by_itself_has_the_name_of_its_column(tmp_path: Path) -> None:
    rows = "1,no,300\n2,no,160\n4,no,88\n1,yes,160\n2,yes,90\n4,yes,55\n"
    text = prose(page(written(tmp_path, f"n_gpus,amp,epoch_time_s\n{rows}")))
    assert "amp no" in text and "amp yes" in text and "precision" not in text


def test_a_law_that_made_the_numbers_gets_no_interval(tmp_path: Path) -> None:
    rows = "".join(f"{n},{1200 * (1 / 30 + 29 / 30 / n)}\n" for n in (1, 2, 4, 8))
    text = prose(page(written(tmp_path, f"gpus,epoch_time_s\n{rows}")))
    assert "serial fraction of 3.33 % fits the speedups exactly" in text
    assert "falls to 50 % on 31.0 GPUs" in text


MEMORY = (
    "gpus,global_batch_size,step_time_ms,peak_mem_{unit},mfu_pct\n"
    "8,512,800,65.4,48.9\n16,512,420,41.2,46.1\n32,512,230,,40.3\n64,512,140,28.9,\n"
)


def test_memory_and_mfu_are_shown_as_the_table_gives_them(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, MEMORY.format(unit="gb")), draws=True)
    figures = {block.label: block for block in blocks if isinstance(block, Figure)}
    drawn = figures["fig-overview-strong"]
    assert "65.4 GB on 8 GPUs and 28.9 GB on 64 GPUs" in drawn.alt
    assert "48.9 % on 8 GPUs and 40.3 % on 32 GPUs" in drawn.alt
    assert drawn.caption == (
        "Speedup over 8 GPUs and the ideal (dashed), efficiency against 8 GPUs; step time, "
        "memory, MFU as the table gives them; by number of GPUs."
    )
    results = next(b.frame for b in blocks if isinstance(b, Table) and "memory" in b.frame)
    assert list(results["memory"]) == ["65.4 GB", "41.2 GB", "-", "28.9 GB"]
    assert list(results["MFU"]) == ["48.9 %", "46.1 %", "40.3 %", "-"]
    everything = prose(blocks) + " ".join(f.alt + f.caption for f in figures.values())
    assert not re.search(r"measured here|not measured", everything)


def test_memory_without_a_unit_is_left_out_and_said_to_be(tmp_path: Path) -> None:
    rows = MEMORY.format(unit="used").replace("65.4", "65400")  # beside 41.2: GB or MB?
    blocks = page(written(tmp_path, rows))
    assert "'peak_mem_used' names no unit, such as GB, and is left out" in prose(blocks)
    assert not any("memory" in block.frame for block in blocks if isinstance(block, Table))
    (drawn,) = (block for block in blocks if isinstance(block, Figure))
    assert "MFU by world size" in drawn.alt and "emory by world size" not in drawn.alt


def test_a_unit_of_memory_that_is_known_by_its_size_is_said_to_be(tmp_path: Path) -> None:
    blocks = page(written(tmp_path, MEMORY.format(unit="used")))
    said = "'peak_mem_used' names no unit, such as GB, and is read as GB, by its size"
    assert said in prose(blocks)
    results = next(b.frame for b in blocks if isinstance(b, Table) and "memory" in b.frame)
    assert list(results["memory"]) == ["65.4 GB", "41.2 GB", "-", "28.9 GB"]


def test_rows_that_did_not_run_are_named(tmp_path: Path) -> None:
    rows = "gpus,global_batch,step_ms\n1,64,OOM\n2,64,100\n4,64,{}\n8,64,30"
    text = prose(page(written(tmp_path, rows.format("55"))))
    assert "Without a time or rate, and left out: row 1 (batch 64, world size 1)." in text
    text = prose(page(written(tmp_path, rows.format("OOM"))))
    assert "left out: row 1 (batch 64, world size 1); row 3 (batch 64, world size 4)." in text


def test_memory_is_that_of_the_rank_that_uses_most(tmp_path: Path) -> None:
    rows = "world_size,rank,epoch_s,mem_mib\n1,0,10,100\n2,0,6,70\n2,1,5,80\n"
    blocks = page(written(tmp_path, rows))
    results = next(b.frame for b in blocks if isinstance(b, Table) and "memory" in b.frame)
    assert list(results["memory"]) == ["105 MB", "83.9 MB"]
