"""The processes of a private Slurm: starting its daemons, finding and ending everything that belongs to it."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin"
# Commands that may wait for the cluster from a user's terminal. The terminal's shell itself is nobody's to end.
CLIENTS = {
    "srun",
    "salloc",
    "sbatch",
    "sattach",
    "squeue",
    "sacct",
    "sacctmgr",
    "scontrol",
    "sinfo",
}
MARK = "PRACTICE_SLURM_DAEMON"


class SlurmError(Exception):
    """What is wrong, and what to do about it."""


@dataclass(frozen=True)
class Slurm:
    """A private Slurm that lies in `folder`."""

    folder: Path

    @property
    def conf(self) -> Path:
        """What SLURM_CONF must name for Slurm's commands to speak to this cluster."""
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses this cluster."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM", "SBATCH"))
        }
        return inherited | {"SLURM_CONF": str(self.conf), "PATH": SEARCH_PATH}

    def ask(self, *command: str, timeout_s: float = 30.0) -> str:
        """What a command of Slurm prints; raises SlurmError where it fails or hangs."""
        try:
            answer = subprocess.run(
                command,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"`{' '.join(command)}` did not answer within {timeout_s:.0f} s"
            ) from None
        if answer.returncode != 0:
            raise SlurmError(
                f"`{' '.join(command)}`: {answer.stderr.strip() or answer.stdout.strip()}"
            )
        return answer.stdout

    def nodes(self) -> dict[str, str]:
        """The state of each node, by name."""
        lines = self.ask(
            "sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T", timeout_s=5.0
        ).splitlines()
        return dict(line.split() for line in lines)

    def start(
        self, program: str, *arguments: str, name: str = "", host: str = "", **variables: str
    ) -> None:
        """Start a daemon that outlives this process; what it prints goes to the log folder.

        The daemon and all that it starts run as on `host`, if this user can isolate hosts.
        """
        path = shutil.which(program, path=SEARCH_PATH) or program
        command = [path, *arguments]
        if host and can_isolate_hosts():
            command = as_host(host, self.folder / "hosts") + command
        with (self.folder / "log" / f"{name or program}.out").open("ab") as log:
            subprocess.run(
                ["setsid", "--fork", *command],
                env=self.environment | variables | {MARK: str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
            )

    def start_controller(self) -> None:
        """Start slurmctld with the state that it saved."""
        self.start("slurmctld", "-D")

    def stop_controller(self) -> None:
        """End slurmctld, which saves its state first; what runs goes on."""
        self._end_daemon("slurmctld")

    def start_node(self, name: str) -> None:
        """Start the slurmd of one node."""
        host = node_host(name)
        self.start("slurmd", "-D", "-N", name, name=f"slurmd.{name}", host=host)

    def stop_node(self, name: str) -> None:
        """End the slurmd of one node; steps that run there go on, the controller notices after a while."""
        self._end_daemon(f"slurmd.{name}")

    def processes(self) -> list[int]:
        """Everything that belongs to this cluster: daemons, steps, tasks, and commands that wait for it."""
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
        return [pid for pid in pids if pid != os.getpid() and self._owns(pid)]

    def end_processes(self) -> None:
        """Kill them all; what one of them starts meanwhile is found the next time round."""
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)

    def _owns(self, pid: int) -> bool:
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/comm").read_text().strip()
            if command == "slurmstepd" and self._logs_here(pid):
                return True
        except OSError:  # it is gone, or somebody else's
            return False
        if f"SLURM_CONF={self.conf}".encode() not in entries:
            return False
        in_a_job = any(entry.startswith(b"SLURMD_NODENAME=") for entry in entries)
        return in_a_job or f"{MARK}={self.folder}".encode() in entries or command in CLIENTS

    def _logs_here(self, pid: int) -> bool:
        """Whether a process has a log of this cluster open; a step may lose its environment."""
        files = (file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir())
        return any(file.parent == self.folder / "log" for file in files)

    def _end_daemon(self, name: str) -> None:
        pid = int((self.folder / "run" / f"{name}.pid").read_text())
        if self._owns(pid):
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not self._owns(pid), what=f"{name} to end")


def node_host(name: str) -> str:
    """The host name of a node: node2 for 127.0.0.2."""
    return f"node{name.rpartition('.')[2]}"


def as_host(host: str, hosts: Path) -> list[str]:
    """The prefix that runs a command in namespaces with a host name and a monotonic clock of its own.

    Names resolve by the file `hosts`. Only root may create such namespaces.
    """
    clock = f"--monotonic={1000 * int(host.removeprefix('node'))}"  # s since the host was started
    script = 'mount --bind "$0" /etc/hosts; hostname "$1"; shift; exec "$@"'
    own = ["unshare", "--uts", "--mount", "--time", "--fork", clock]
    return [*own, "sh", "-ec", script, str(hosts), host]


@functools.cache
def can_isolate_hosts() -> bool:
    """Whether each node can be a host of its own; otherwise all have this machine's name."""
    command = [*as_host("node2", Path("/etc/hosts")), "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def wait_until(ready: Callable[[], bool], *, what: str, timeout_s: float = 120.0) -> None:
    """Ask every 50 ms until the answer is yes; raises SlurmError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise SlurmError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.05)
