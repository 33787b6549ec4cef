"""The configuration files of a private Slurm on one machine, as text."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from pathlib import Path

from daemons import can_isolate_hosts, node_host

CLUSTER_NAME = "practice"


@dataclass(frozen=True)
class Settings:
    """What a test cluster has: `nodes` virtual nodes, each with `gpus` fake GPUs, `cpus` CPUs and `memory_mb` MB.

    `host` is this machine's short name and `address` what it resolves to: there, and nowhere else, the daemons listen.
    `ports` are free TCP ports: the controller's, the accounting daemon's, then one for each node.
    """

    folder: Path
    nodes: int
    gpus: int
    cpus: int
    memory_mb: int
    accounting: bool
    host: str
    address: str
    ports: tuple[int, ...]

    @property
    def node_names(self) -> list[str]:
        """Loopback addresses, so that the first node's name resolves as MASTER_ADDR without an entry in the hosts file."""
        return [f"127.0.0.{2 + index}" for index in range(self.nodes)]

    def files(self) -> dict[str, str]:
        """The files by name; they belong in one folder, to which SLURM_CONF points."""
        texts = {
            "slurm.conf": self._slurm_conf(),
            "gres.conf": self._gres_conf(),
            "hosts": self._hosts(),
        }
        return texts | ({"slurmdbd.conf": self._slurmdbd_conf()} if self.accounting else {})

    def _slurm_conf(self) -> str:
        host, folder = self.host, self.folder
        lines = [
            f"ClusterName={CLUSTER_NAME}",
            f"SlurmctldHost={host}({self.address})",
            f"SlurmctldPort={self.ports[0]}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            f"SlurmUser={getpass.getuser()}",
            f"SlurmdUser={getpass.getuser()}",
            "AuthType=auth/munge",
            # A requeued job waits until its old credential has expired: 120 s unless told otherwise.
            f"AuthInfo=socket={folder}/run/munge.socket,cred_expire=5",
            "CredType=cred/munge",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool/%n",
            f"SlurmctldPidFile={folder}/run/slurmctld.pid",
            f"SlurmdPidFile={folder}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={folder}/log/slurmctld.log",
            f"SlurmdLogFile={folder}/log/slurmd.%n.log",
            "SlurmdParameters=config_overrides",
            "SlurmctldParameters=preempt_send_user_signal",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            *self._accounting_lines(),
            "JobAcctGatherType=jobacct_gather/linux",
            "JobAcctGatherParams=OverMemoryKill",
            "JobAcctGatherFrequency=task=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            f"DefMemPerCPU={self.memory_mb // self.cpus}",
            "GresTypes=gpu",
            "PreemptType=preempt/partition_prio",
            "PreemptMode=REQUEUE",
            "ReturnToService=2",
            "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=1,sched_interval=1",
            "SlurmdTimeout=30",
            "KillWait=2",
            "MinJobAge=86400",
        ]
        for name, port in zip(self.node_names, self.ports[2:], strict=True):
            size = f"CPUs={self.cpus} RealMemory={self.memory_mb}" + (
                f" Gres=gpu:{self.gpus}" if self.gpus else ""
            )
            hostname = node_host(name) if can_isolate_hosts() else host
            lines.append(
                f"NodeName={name} NodeHostname={hostname} NodeAddr={self.address} Port={port} "
                f"{size} State=UNKNOWN"
            )
        partition = "Nodes=ALL MaxTime=INFINITE State=UP"
        lines += [
            f"PartitionName=debug {partition} Default=YES PriorityTier=10 PreemptMode=OFF",
            f"PartitionName=scavenge {partition} PriorityTier=1 PreemptMode=REQUEUE",
        ]
        return "\n".join(lines) + "\n"

    def _hosts(self) -> str:
        names = " ".join(map(node_host, self.node_names))
        return f"{Path('/etc/hosts').read_text()}\n{self.address} {names}\n"

    def _accounting_lines(self) -> list[str]:
        if not self.accounting:
            return ["AccountingStorageType=accounting_storage/none"]
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            f"AccountingStorageHost={self.address}",
            f"AccountingStoragePort={self.ports[1]}",
            f"AccountingStoragePass={self.folder}/run/munge.socket",  # where the daemon's clients look for munge
            "AccountingStorageTRES=gres/gpu",
        ]

    def _gres_conf(self) -> str:
        devices = (
            f"Name=gpu File={self.folder}/dev/nvidia[0-{self.gpus - 1}]\n" if self.gpus else ""
        )
        return f"AutoDetect=off\n{devices}"

    def _slurmdbd_conf(self) -> str:
        lines = [
            "AuthType=auth/munge",
            f"AuthInfo=socket={self.folder}/run/munge.socket",
            f"DbdHost={self.host}",
            f"DbdAddr={self.address}",
            "CommunicationParameters=NoInAddrAny",
            f"DbdPort={self.ports[1]}",
            f"SlurmUser={getpass.getuser()}",
            f"LogFile={self.folder}/log/slurmdbd.log",
            f"PidFile={self.folder}/run/slurmdbd.pid",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            f"StorageUser={getpass.getuser()}",
            "StorageLoc=slurm",
        ]
        return "\n".join(lines) + "\n"
