"""Links between the ranks of one machine that are as slow as they say, and ranks that sleep: what arrives, and what is told of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from studies import StudyMaker

import lab
from lab.analysis.scaling import summary
from lab.analysis.scaling_curves import curves
from lab.config.cluster import Cluster
from lab.config.emulation import Link
from lab.config.study import Study
from lab.launch import netem
from lab.launch.calibrate import calibrate
from lab.records.store import Record

SLOW, FAST, LATE = (
    Link(bandwidth_gbit=0.05),
    Link(bandwidth_gbit=1),
    Link(bandwidth_gbit=1, latency_ms=50),
)
REPORTS = Path(__file__).parents[3] / "reports"
SENT = 2_000_000
# TCP paces no connection's first ten packets, of 64 KiB on loopback; a bucket holds less.
FREE = 10 * 2**16
LARGE = 2**18  # bytes beside which a bucket is small

# Two processes behind their links; rank 1 prints for how long rank 0's bytes were on their way, and for how long an echo was.
TALK = """
import socket, sys, time
from pathlib import Path
from lab.config.emulation import Emulated, Link
from lab.launch.netem import join
from lab.worker.context import RankContext

rank, count, way, link, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Link.model_validate_json(sys.argv[4]), Path(sys.argv[5])
place = RankContext(rank, 2, rank, "cpu", (0,), 1, "test", folder / "address")
if way == "join":
    place = join(place, link, folder / "network")
def wait_for(path):
    while not path.exists():
        time.sleep(0.01)
if rank == 0:
    server = socket.create_server((place.host, 0))
    (folder / "written").write_text(str(server.getsockname()[1]))
    (folder / "written").rename(folder / "port")
    peer = server.accept()[0]
else:
    wait_for(folder / "port")
    peer = socket.create_connection((place.host, int((folder / "port").read_text())))
if way == "pacing":
    from lab.worker.distributed import pace_sockets
    assert pace_sockets(Emulated(link=link, way="pacing")) == 1
if rank == 0:
    peer.recv(1)
    peer.sendall(b"x")
    peer.recv(1)
    peer.sendall(bytes(count))
    peer.recv(1)
else:
    begin = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    echoed = time.perf_counter()
    peer.sendall(b"x")
    while count:
        count -= len(peer.recv(65536))
    print(echoed - begin, time.perf_counter() - echoed)
    peer.sendall(b"x")
"""


def talk(folder: Path, link: Link, *, way: str = "join") -> tuple[float, float]:
    """Seconds of an echo and of SENT bytes between two processes."""
    folder.mkdir()
    words = [str(SENT), way, link.model_dump_json(), str(folder)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TALK, str(rank), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=300) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], outputs
    echo, transfer = map(float, outputs[1][0].split())
    return echo, transfer


def require(link: Link) -> None:
    if netem.way_for(link) is None:
        pytest.skip(f"{link.label} cannot be emulated here: {netem.obstacle(link)}")


@pytest.mark.parametrize("way", ["join", "pacing"])
def test_a_link_is_as_slow_as_it_says(tmp_path: Path, way: str) -> None:
    require(FAST)
    slow, fast = (
        talk(tmp_path / str(number), link, way=way)[1] for number, link in enumerate((SLOW, FAST))
    )
    # No link carries more than its bandwidth, however busy this machine is.
    assert slow > 0.9 * (SENT - FREE) / SLOW.bytes_per_s
    assert slow > 2 * fast


def test_latency_is_paid_twice_by_an_echo(tmp_path: Path) -> None:
    require(LATE)
    echo, _ = talk(tmp_path / "late", LATE)
    assert echo >= 2 * 0.05


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranks behind slow links, and a device lock of this test's own."""
    require(SLOW)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "slow.yaml"
    path.write_text("executor: local\ndevice: cpu\ndevices: 2\nlink: {bandwidth_gbit: 0.05}\n")
    return path


def measured(study: Study, profile: Path) -> Record:
    """The one record of a study."""
    (record,) = lab.launch(study, str(profile)).wait(progress=False)
    assert record.completed, record.error
    return record


def test_a_study_behind_slow_links_says_so(make_study: StudyMaker, profile: Path) -> None:
    made = Study.load(
        make_study(grid={"global_batch_size": [4], "world_size": [2]}, baseline={"world_size": 2})
    )
    record = measured(made, profile)
    assert record.environment is not None and record.environment.emulated is not None
    assert (record.environment.emulated.link, record.environment.emulated.way) == (
        SLOW,
        netem.way_for(SLOW),
    )
    assert record.communication is not None and record.environment.parameters
    assert record.communication.bytes == 4 * record.environment.parameters
    assert record.checks["same_parameters"] and record.quality is not None
    assert lab.table(made)["emulated"].tolist() == ["link 50 Mbit/s"]
    assert [
        finding.severity for finding in lab.audit(made).findings if finding.rule == "emulated"
    ] == ["note"]


def test_a_model_and_a_script_of_ones_own_go_through_the_link(
    tmp_path: Path, profile: Path
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    for path in (REPORTS / "own-model" / "unet.py", REPORTS / "own-script" / "train.py"):
        shutil.copy2(path, folder)
    script = {"kind": "script", "command": "train.py --batch-size 2 --width 64"}
    model = {"kind": "python", "factory": "unet:UNet", "args": {"width": 4, "depth": 2}}
    model |= {"loss": "unet:dice_and_cross_entropy"}
    data = {"kind": "python", "factory": "unet:cells", "args": {"images": 32, "size": 16}}
    own = {"model": [model], "data": [data], "global_batch_size": [4], "eval_batches": [1]}
    content = {
        "title": "Own code",
        "question": "?",
        "base": {"world_size": 2, "steps": 6, "warmup_steps": 2},
        "grid": [{"model": [script]}, own],
        "repeats": 1,
        "baseline": {"world_size": 2},
    }
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    records = lab.launch(Study.load(folder), str(profile)).wait(progress=False)
    for record in records:
        assert record.completed, record.error
        assert record.environment and record.environment.emulated
        assert record.environment.emulated.way == netem.way_for(SLOW)
    sent = records[0].communication
    assert sent and sent.bytes and sent.total and sent.bytes > FREE
    # No link carries more than its bandwidth, however busy this machine is.
    assert sent.total.median > 0.9 * (sent.bytes - FREE) / SLOW.bytes_per_s
    parameters = records[1].environment and records[1].environment.parameters
    assert records[1].communication and parameters
    assert records[1].communication.bytes == 4 * parameters


def test_four_ranks_sleep_behind_real_wrappers_and_links(
    make_study: StudyMaker, profile: Path
) -> None:
    profile.write_text(
        profile.read_text().replace("devices: 2", "devices: 4") + "compute: {emulated: measured}\n"
    )
    made = Study.load(
        make_study(grid={"global_batch_size": [4], "world_size": [4]}, baseline={"world_size": 4})
    )
    record = measured(made, profile)
    assert (
        record.environment is not None
        and record.environment.emulated is not None
        and record.timing is not None
    )
    slept = record.environment.emulated.step
    assert set(slept) == {"forward", "backward", "optimizer"} and all(
        seconds > 0 for seconds in slept.values()
    )
    # A sleep is never shorter than it should be on average.
    assert record.timing.step.median > 0.9 * sum(slept.values())
    assert record.communication is not None and record.communication.bytes == 4 * (
        record.environment.parameters or 0
    )
    assert (
        record.quality is None
        and record.timing.mfu is None
        and "same_parameters" not in record.checks
    )
    scaling_summary = summary(lab.table(made), baseline=made.baseline, scaling="strong")
    assert [line.label for line in curves(scaling_summary)] == [
        "batch 4, emulated link 50 Mbit/s and compute (times of one rank)"
    ]


def test_a_calibration_goes_through_the_link(profile: Path) -> None:
    calibration = calibrate(profile, world_sizes=[2], quick=True, progress=False)
    assert calibration.environment is not None and calibration.environment.emulated is not None
    assert calibration.environment.emulated.link == Cluster.load(profile).link
    large = [
        row for row in calibration.rows if row.collective == "all_reduce" and row.bytes >= LARGE
    ]
    assert large and all(row.busbw < 1.2 * SLOW.bytes_per_s for row in large)
