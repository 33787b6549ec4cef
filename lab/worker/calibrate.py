"""What a calibration job runs on each rank: collectives where there are several, the device by itself where there is one."""

from __future__ import annotations

import socket
from contextlib import nullcontext
from datetime import UTC, datetime

import torch

from lab.calibration import CollectiveTime, ContentionTime, MatrixProduct, MemoryBandwidth, Part
from lab.cluster import Cluster
from lab.jobs.place import Place, Progress
from lab.worker.collectives import MIB, SIZES, measure_collectives
from lab.worker.contention import measure_contention
from lab.worker.environment import environment
from lab.worker.foreign import cpu_use, foreign_cpu
from lab.worker.group import gather, process_group
from lab.worker.main import device_of
from lab.worker.throughput import matrix_products, memory_bandwidth

BUDGET_S, QUICK_BUDGET_S = 25.0, 4.0
QUICK_LARGEST = 4 * MIB


def measure(place: Place, cluster: Cluster, *, quick: bool, progress: Progress) -> Part | None:
    """Measure one world size; rank 0 gets the part, the others None. All ranks must call it.

    Raises LabError for a device that is not there and for a collective that gives a wrong result.
    """
    torch.set_num_threads(place.threads)
    device = device_of(place)
    times: list[CollectiveTime] = []
    products: list[MatrixProduct] = []
    memory: MemoryBandwidth | None = None
    contention: ContentionTime | None = None
    before = cpu_use(place.cores)
    with process_group(place, device=device) if place.world_size > 1 else nullcontext():
        if place.world_size > 1:
            sizes = [size for size in SIZES[device.type] if size <= QUICK_LARGEST or not quick]
            budget = QUICK_BUDGET_S if quick else BUDGET_S
            times, missing = measure_collectives(device=device, sizes=sizes, budget_s=budget, progress=progress)
            if cluster.compute is None:  # ranks that sleep leave the cores to others
                contention = measure_contention(device=device, quick=quick, progress=progress)
        else:
            progress("matrix products", 0, 2)
            products, missing = matrix_products(device)
            progress("memory", 1, 2)
            memory = memory_bandwidth(device)
        told = gather((socket.gethostname(), place.cores, cpu_use(place.cores).since(before)))
    if told is None:
        return None
    return Part(
        world_size=place.world_size,
        quick=quick,
        measured_at=datetime.now(UTC),
        profile=cluster,
        environment=environment(
            place,
            device=device,
            hosts=[host for host, _, _ in told],
            cores=[cores for _, cores, _ in told],
            foreign_cpu=foreign_cpu((host, use) for host, _, use in told),
        ),
        times=tuple(times),
        matrix_products=tuple(products),
        memory=memory,
        contention=contention,
        missing=missing,
    )
