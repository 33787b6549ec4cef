"""The output of nccl-tests as a table, and what the audit says of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from audits import pasted

from lab.analysis.audit import audit
from lab.analysis.audit.text_table import read_table
from lab.analysis.reported import records_from
from lab.errors import InputError

HEAD = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 67108864 step: 256(factor) warmup iters: 5 iters: 20 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
{devices}
#
#                                            out-of-place                  in-place
#    size     count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong
#     (B) (elements)                      (us) (GB/s) (GB/s)          (us) (GB/s) (GB/s)
"""
TAIL = """\
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 17.5
#
"""


def written(folder: Path, rows: str, *, nodes: int = 2) -> Path:
    devices = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid  90{rank} on    node{rank % nodes} "
        "device  0 [0x07] NVIDIA T4"
        for rank in range(4)
    )
    path = folder / "output.txt"
    path.write_text(HEAD.format(devices=devices) + rows + TAIL)
    return path


def row(size: int, us: float, *, in_place: str | None = None) -> str:
    algbw = size / us / 1e3
    measured = f"{us:.2f} {algbw:.2f} {1.5 * algbw:.2f} 0"
    return f" {size} {size // 4} float sum -1 {measured} {in_place or measured}\n"


@pytest.mark.parametrize("prefix", ["0: ", " 12: ", "[1,0]<stdout>:"])
def test_lines_with_the_rank_that_printed_them(tmp_path: Path, prefix: str) -> None:
    path = written(tmp_path, row(1024, 40))
    plain = read_table(path)
    path.write_text("".join(prefix + line + "\n" for line in path.read_text().splitlines()))
    assert read_table(path).equals(plain)


def test_sizes_times_and_devices(tmp_path: Path) -> None:
    frame = read_table(
        written(tmp_path, row(1024, 40) + row(2**26, 9000, in_place="N/A N/A N/A N/A"))
    )
    assert frame["message_bytes"].tolist() == ["1024", "1024", str(2**26)]
    assert frame["variant"].tolist() == ["out-of-place", "in-place", "out-of-place"]
    assert frame.iloc[2][["time_us", "gpus", "nodes", "gpu_name", "repeats"]].tolist() == [
        "9000.00",
        "4",
        "2",
        "NVIDIA T4",
        "20",
    ]


def test_programs_that_do_not_know_each_other_have_one_rank(tmp_path: Path) -> None:
    path = written(tmp_path, row(1024, 40))
    path.write_text(
        path.read_text()
        .replace("Rank  1", "Rank  0")
        .replace("Rank  2", "Rank  0")
        .replace("Rank  3", "Rank  0")
    )
    assert set(read_table(path)["gpus"]) == {"1"}


def test_what_is_plausible_passes_and_what_is_not_is_named(tmp_path: Path) -> None:
    clean = audit(written(tmp_path, row(1024, 40) + row(2**18, 80) + row(2**26, 9000)))
    assert clean.findings == () and "plausible-bandwidth" not in {
        rule.rule for rule in clean.not_checked
    }
    (wrong, *_) = audit(written(tmp_path, row(1024, 40) + row(2**26, 70))).findings
    assert (
        wrong.rule == "plausible-bandwidth"
        and wrong.severity == "error"
        and "64 MiB, world size 4" in wrong.records[0]
    )


def test_without_sizes_it_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="printed no sizes"):
        read_table(written(tmp_path, ""))


def test_their_report_is_refused_with_what_reads_them(tmp_path: Path) -> None:
    path = written(tmp_path, row(1024, 40) + row(2**26, 9000))
    with pytest.raises(InputError, match=r"of collectives by size, .* `lab calibrate`"):
        records_from(path)


def test_addresses_of_devices_with_their_domain(tmp_path: Path) -> None:
    path = written(tmp_path, row(1024, 40))
    path.write_text(path.read_text().replace("[0x07]", "[0000:07:00.0]"))
    assert set(read_table(path)["gpus"]) == {"4"}


def test_one_group_of_columns(tmp_path: Path) -> None:
    lines = written(tmp_path, row(2**26, 9000)).read_text().splitlines()
    header = "#    size     count   type  redop  root   time  algbw  busbw #wrong"
    lines = [header if "algbw" in line else line for line in lines]
    path = tmp_path / "one.txt"
    path.write_text("\n".join(" ".join(line.split()[:9]) for line in lines) + "\n")
    frame = read_table(path)
    assert frame[["variant", "time_us"]].to_numpy().tolist() == [["out-of-place", "9000.00"]]


@pytest.mark.parametrize("twice", [1, 2])
def test_saved_as_csv(tmp_path: Path, twice: int) -> None:
    path = tmp_path / "all_reduce.csv"
    names = ",time,algbw,busbw,#wrong" * twice
    lines = [f"size,count,type,redop,root{names}"]
    for size, time in ((1048576, 100.0), (67108864, 5000.0)):
        algorithm = size / time / 1e3
        lines.append(
            f"{size},{size // 4},float,sum,-1" + f",{time},{algorithm},{algorithm * 1.5},0" * twice
        )
    path.write_text("\n".join(lines))
    frame = read_table(path)
    assert len(frame) == 2 * twice and set(frame["gpus"]) == {"4"}
    assert not audit(path).findings[1:]


def test_rows_without_their_header() -> None:
    text = """\
   4194304   1048576   float   sum   -1   53.24   78.78   137.87   0   52.85   79.36  138.88   0
  33554432   8388608   float   sum   -1  195.40  171.72   300.51   0  195.40  171.73  300.52   0
"""
    result = pasted(text)
    assert result.reading["message_bytes"] == "bytes" and result.reading["gpus"] == "world_size"
    assert "in-place, 4 MiB, world size 8" in str(result.findings[0].records)


def test_ranks_are_those_of_the_command() -> None:
    rows = "\n".join(
        f" {size} {size // 4} float sum {us} {algbw} {busbw} 4e-07"
        for size, us, algbw, busbw in [(512, 30.63, 0.02, 0.03), (1024, 31.25, 0.06, 0.11)]
    )
    text = f"#  size  count  type  redop  time  algbw  busbw  error\n{rows}\n"
    assert "gpus" not in pasted(text).reading  # 0.06 and 0.11 may be of 3 ranks or of any number
    run = "mpirun -np 4 ./build/all_reduce_perf -b 8 -e 160K -f 2 -g 2 -n 250\n"
    assert "world size 8" in str(pasted(run + text).findings[0].records)
    run = "srun --nodes=4 --ntasks-per-node=8 --label \\\n    -- all_gather_perf -b 64K -e 4G\n"
    assert "world size 32" in str(pasted(run + text).findings[0].records)
    run = "NCCL_ALGO=TREE ./all_reduce_perf -g 8 -b 8 -e 128M\n"
    assert "world size 8" in str(pasted(run + text).findings[0].records)
