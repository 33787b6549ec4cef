"""A private Slurm on this machine, for practice and for tests: up, down, status.

No root, no systemd, loopback only. Its virtual nodes share this machine; their GPUs are links to /dev/null, which Slurm
hands out like real ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from daemons import SEARCH_PATH, Slurm, SlurmError, wait_until
from slurm_conf import CLUSTER_NAME, Settings

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / f"practice-slurm-{os.getuid()}"
PROGRAMS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client"}
ACCOUNTING_PROGRAMS = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server-core"}
LONGEST_SOCKET_PATH = 107  # bytes; the kernel takes no longer one


def up(
    folder: Path = DEFAULT_FOLDER,
    *,
    nodes: int = 4,
    gpus: int = 4,
    cpus: int = 4,
    memory_mb: int = 8000,
    accounting: bool = False,
) -> Slurm:
    """Bring up a Slurm in a private folder and wait until all its nodes are idle.

    `gpus`, `cpus` and `memory_mb` are those of each node. Raises SlurmError where packages are missing, the folder is
    in use, or a daemon does not start.
    """
    folder = folder.resolve()
    _check(folder, nodes=nodes, gpus=gpus, cpus=cpus, accounting=accounting)
    host, address = _this_host()
    settings = Settings(
        folder,
        nodes,
        gpus,
        cpus,
        memory_mb,
        accounting,
        host,
        address,
        _free_ports(address, nodes + 2),
    )
    _write_folder(settings)
    slurm = Slurm(folder)
    try:
        _start(slurm, settings)
    except SlurmError as error:
        words = _last_words(slurm)
        down(folder)
        raise SlurmError(f"{error}\n{words}") from None
    except BaseException:
        down(folder)
        raise
    return slurm


def down(folder: Path = DEFAULT_FOLDER) -> None:
    """Kill everything that belongs to the cluster in a folder, and remove the folder.

    Raises SlurmError where no cluster lies in the folder.
    """
    slurm = _at(folder)
    slurm.end_processes()
    shutil.rmtree(slurm.folder)


def status(folder: Path = DEFAULT_FOLDER) -> str:
    """Nodes and jobs as text; raises SlurmError where there is no cluster or its controller gives no answer."""
    slurm = _at(folder)
    jobs = slurm.ask("squeue", "-o", "%.8i %.10P %.16j %.10T %.8M %N")
    return f"{slurm.ask('sinfo', '-N', '-o', '%.12N %.10P %.10T %.5c %.8m %G')}\n{jobs}"


def _at(folder: Path) -> Slurm:
    slurm = Slurm(folder.resolve())
    if not slurm.conf.is_file() or f"ClusterName={CLUSTER_NAME}\n" not in slurm.conf.read_text():
        raise SlurmError(f"no test cluster lies in {folder}")
    return slurm


def missing_packages(*, accounting: bool = False) -> list[str]:
    """Debian's names of the packages that are needed and not installed."""
    programs = PROGRAMS | (ACCOUNTING_PROGRAMS if accounting else {})
    return [
        package
        for program, package in programs.items()
        if shutil.which(program, path=SEARCH_PATH) is None
    ]


def _check(folder: Path, *, nodes: int, gpus: int, cpus: int, accounting: bool) -> None:
    if not sys.platform.startswith("linux"):
        raise SlurmError(
            "Slurm's daemons run on Linux: use a Linux machine, a virtual one or a container"
        )
    if missing := missing_packages(accounting=accounting):
        raise SlurmError(
            f"missing packages; on Debian: apt install --no-install-recommends {' '.join(missing)}"
        )
    if not (1 <= nodes <= 200 and 0 <= gpus <= 64 and 1 <= cpus <= 256):
        raise SlurmError(
            f"{nodes} nodes, {gpus} GPUs, {cpus} CPUs: 1-200 nodes, 0-64 GPUs and 1-256 CPUs are "
            "possible"
        )
    if len(os.fsencode(folder / "run" / "munge.socket")) > LONGEST_SOCKET_PATH:
        raise SlurmError(f"{folder} is too long a path for a socket: choose a shorter --folder")
    if any(character in str(folder) for character in " ,#=[]"):
        raise SlurmError(
            f"{folder}: Slurm's files cannot hold such a path: choose a plain --folder"
        )
    if (folder / "slurm.conf").exists():
        raise SlurmError(f"a cluster lies in {folder} already: use it, or take it down first")
    if folder.exists() and (folder.stat().st_uid != os.getuid() or any(folder.iterdir())):
        raise SlurmError(f"{folder} is not an empty folder of your own: choose another --folder")


def _this_host() -> tuple[str, str]:
    """This machine's short name and its address; Slurm's daemons bind to what the name resolves to, mostly loopback."""
    host = socket.gethostname().split(".")[0]
    try:
        return host, socket.gethostbyname(host)
    except OSError:
        raise SlurmError(
            f"this machine's name does not resolve: add the line `127.0.0.1 {host}` to /etc/hosts"
        ) from None


def _free_ports(address: str, count: int) -> tuple[int, ...]:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind((address, 0))
        return tuple(one.getsockname()[1] for one in opened)


def _write_folder(settings: Settings) -> None:
    folder = settings.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for name in ("run", "log", "state", "spool", "dev", "db"):
        (folder / name).mkdir(mode=0o700)
    for gpu in range(settings.gpus):
        (folder / "dev" / f"nvidia{gpu}").symlink_to("/dev/null")
    for name, text in settings.files().items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(text)
    key = folder / "run" / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))


def _start(slurm: Slurm, settings: Settings) -> None:
    run = slurm.folder / "run"
    options = [
        f"--key-file={run}/munge.key",
        f"--socket={run}/munge.socket",
        f"--pid-file={run}/munged.pid",
    ]
    options += [f"--seed-file={run}/munged.seed", f"--log-file={slurm.folder}/log/munged.log"]
    slurm.start(
        "munged", "--foreground", "--force", *options
    )  # forced, as the socket's folder is closed to others
    wait_until((run / "munge.socket").exists, what="munged")
    if settings.accounting:
        _start_accounting(slurm)
    slurm.start_controller()
    for name in settings.node_names:
        slurm.start_node(name)
    wait_until(lambda: _all_idle(slurm), what="the nodes to be idle")


def _start_accounting(slurm: Slurm) -> None:
    run = slurm.folder / "run"
    options = [
        f"--datadir={slurm.folder}/db",
        f"--socket={run}/db.socket",
        f"--pid-file={run}/mariadbd.pid",
    ]
    # No grant tables and no network: whoever may open the socket in the private folder is the only user there is.
    options += [
        "--skip-grant-tables",
        "--skip-networking",
        "--skip-log-bin",
        "--innodb-buffer-pool-size=64M",
    ]
    slurm.start(
        "mariadbd", "--no-defaults", *options, *(["--user=root"] if os.getuid() == 0 else [])
    )
    wait_until((run / "db.socket").exists, what="MariaDB")
    slurm.start("slurmdbd", "-D", MYSQL_UNIX_PORT=f"{run}/db.socket")
    wait_until(lambda: _knows_the_cluster(slurm), what="slurmdbd")


def _knows_the_cluster(slurm: Slurm) -> bool:
    with suppress(SlurmError):
        slurm.ask("sacctmgr", "-i", "add", "cluster", CLUSTER_NAME, timeout_s=5.0)
        return True
    return False


def _all_idle(slurm: Slurm) -> bool:
    with suppress(SlurmError):
        return set(slurm.nodes().values()) == {"idle"}
    return False


def _last_words(slurm: Slurm) -> str:
    paths = sorted(path for path in (slurm.folder / "log").iterdir() if path.stat().st_size)
    return "\n".join(
        f"{path.name}: {line}"
        for path in paths
        for line in path.read_text(errors="replace").splitlines()[-3:]
    )


def _use(slurm: Slurm) -> str:
    """How its commands find it; the lab needs no help where Slurm is not configured otherwise."""
    terminals = "In every terminal in which Slurm's own commands shall use them"
    usual = slurm.folder == DEFAULT_FOLDER.resolve()
    return f"`lab run STUDY --cluster practice` finds them. {terminals}" if usual else terminals


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(
        prog="testcluster.py", description="A private Slurm on this machine."
    )
    parser.add_argument("action", choices=["up", "down", "status"])
    parser.add_argument(
        "--folder", type=Path, default=DEFAULT_FOLDER, help="where it lies (default: %(default)s)"
    )
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--gpus", type=int, default=4, help="fake GPUs of each node")
    parser.add_argument("--cpus", type=int, default=4, help="CPUs of each node")
    parser.add_argument(
        "--accounting", action="store_true", help="with slurmdbd and MariaDB, so that sacct works"
    )
    given = parser.parse_args(arguments)
    try:
        if given.action == "up":
            sizes = {"nodes": given.nodes, "gpus": given.gpus, "cpus": given.cpus}
            slurm = up(given.folder, accounting=given.accounting, **sizes)
            print(f"{given.nodes} nodes are idle. {_use(slurm)}:\nexport SLURM_CONF={slurm.conf}")
        elif given.action == "down":
            down(given.folder)
        else:
            print(status(given.folder), end="")
    except SlurmError as error:
        print(f"testcluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
