"""What a calibration job runs on each rank: collectives, or on a single rank its device.

Reference steps run each strategy in turn, in processes of their own.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from lab.config.cluster import Cluster
from lab.config.strategies import STRATEGIES
from lab.errors import InputError, LabError, first_line
from lab.formatting import MIB, count
from lab.machine import cpu_model
from lab.perfmodel.calibration import (
    PLAIN,
    MatrixProduct,
    MemoryBandwidth,
    Part,
    ReferenceStep,
    pooled,
    reference_runs,
)
from lab.perfmodel.hardware import vendor_peak
from lab.perfmodel.simulate import P10_TO_P90
from lab.records.schema import PHASES
from lab.records.table import grouped
from lab.worker import data
from lab.worker.collectives import SIZES, measure_collectives, measure_contention
from lab.worker.context import Progress, RankContext, silent
from lab.worker.distributed import RankJob, all_gather_object, device_of, gather, process_group
from lab.worker.environment import MachineWatch, environment
from lab.worker.measure.clock import gpu_seconds_of, seconds_of
from lab.worker.optim import DTYPES, set_products
from lab.worker.sync_cost import readiness
from lab.worker.train import train

BUDGET_S, QUICK_BUDGET_S = 25.0, 4.0
QUICK_LARGEST = 4 * MIB
COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}  # far above the last cache
COPY_S = 1.5
PEAK_BUDGET_S = 0.3
MISSES = 2  # sizes in a row that are no faster: a larger product only takes longer
FEWEST = 3  # products of a size: another process may interrupt the only one
TOGETHER_S = 0.02  # of products that are timed together on CUDA
PEAK_SIZES = {"cpu": (128, 256, 512, 1024, 2048), "cuda": (1024, 2048, 4096, 8192)}
STARTS, QUICK_STARTS = 4, 3
STARTS_TOGETHER, QUICK_STARTS_TOGETHER = 3, 1  # with several ranks


def measure(
    context: RankContext,
    cluster: Cluster,
    strategies: Sequence[str] | None,
    *,
    quick: bool,
    progress: Progress,
) -> Part | None:
    """Measure one world size; rank 0 gets the part, the others None. All ranks must call this.

    Reference steps are those of these strategies (None: of all). Raises LabError for a missing
    device and for a collective that gives a wrong result.
    """
    torch.set_num_threads(context.threads)  # as in the runs predicted from it
    device = device_of(context)
    fields: dict[str, Any] = {}
    several, computes = context.world_size > 1, cluster.compute is None
    watch = MachineWatch(context, device)
    with process_group(context, device=device, alone=False):
        if several:
            sizes = [size for size in SIZES[device.type] if size <= QUICK_LARGEST or not quick]
            budget = QUICK_BUDGET_S if quick else BUDGET_S
            fields["times"], fields["missing"] = measure_collectives(
                device, sizes, budget_s=budget, progress=progress
            )
        else:
            progress("matrix products", 0, 2)
            fields["matrix_products"], fields["missing"] = matrix_products(device)
            progress("memory", 1, 2)
            fields["memory"] = memory_bandwidth(device)
        if several and computes:  # sleeping ranks leave the cores to others
            fields["contention"] = measure_contention(device, quick=quick, progress=progress)
        # Over an emulated slow link all of these steps would take minutes.
        if computes and not (several and cluster.link):
            fields["steps"] = reference_steps(context, strategies, quick=quick, progress=progress)
        ranks = gather(watch.stop())
    if ranks is None:
        return None
    return Part(
        world_size=context.world_size,
        quick=quick,
        strategies=None if strategies is None else tuple(strategies),
        measured_at=datetime.now(UTC),
        profile=cluster,
        environment=environment(context, device=device, ranks=ranks),
        **fields,
    )


def matrix_products(device: torch.device) -> tuple[list[MatrixProduct], dict[str, str]]:
    """The best square matrix product of each dtype, and why some are missing."""
    products, missing = [], {}
    for name, dtype in DTYPES.items():
        if name == "tf32" and device.type == "cpu":
            continue
        set_products(name)
        try:
            flops, size = measured_peak(device, dtype=dtype)
        except RuntimeError as error:  # a dtype that this device or build does not support
            missing[name] = first_line(error)
        else:
            products.append(MatrixProduct(dtype=name, flops_per_s=flops, size=size))
    return products, missing


def memory_bandwidth(device: torch.device) -> MemoryBandwidth:
    """Bytes/s of the fastest copy of a large tensor, counting reads and writes (as in STREAM)."""
    cuda = device.type == "cuda"
    free = torch.cuda.mem_get_info(device)[0] if cuda else psutil.virtual_memory().available
    # If memory is short, the two tensors take a quarter of the free memory to avoid swapping.
    size = min(COPY_BYTES[device.type], free // 8)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    target.copy_(source)  # the first copy pays for the page faults
    best = float("inf")
    end = time.perf_counter() + COPY_S
    while best == float("inf") or time.perf_counter() < end:
        # The fastest: anything else running on the machine can only slow a copy down.
        best = min(best, seconds_of(partial(target.copy_, source), device))
    return MemoryBandwidth(bytes_per_s=2 * source.nbytes / best, bytes=source.nbytes)


def peak_flops(device: torch.device, *, precision: str) -> tuple[float, str]:
    """FLOP/s of one rank's device in the run's precision, and the source of the figure.

    The vendor's figure for a known GPU, else the best matrix product found in under a second.
    """
    cuda = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if cuda else cpu_model()
    set_products(precision)
    if cuda and (peak := vendor_peak(name, precision=precision)):
        flops, source = peak
        return flops, source + (" (ROCm: untried)" if getattr(torch.version, "hip", None) else "")
    flops, size = measured_peak(device, dtype=DTYPES[precision])
    rank = "a rank" if cuda else f"a rank with {count(torch.get_num_threads(), 'thread')}"
    product = f"the best {precision} matrix product ({size} x {size})"
    return flops, f"measured on {name}: {product} of {rank}"


def measured_peak(device: torch.device, *, dtype: torch.dtype) -> tuple[float, int]:
    """The FLOP/s of the fastest square matrix product, and its size, in about PEAK_BUDGET_S."""
    sizes, on_gpu = PEAK_SIZES[device.type], device.type == "cuda"
    best, best_size = 0.0, 0
    for nth, size in enumerate(sizes):
        flops = 2 * size**3
        # If a precision is emulated, large products take minutes.
        if best and FEWEST * flops / best > PEAK_BUDGET_S:
            break
        if best and nth - sizes.index(best_size) > MISSES:
            break
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        out = a @ b  # the first product chooses a kernel and allocates
        # A GPU raises its clock under load, and a single product there takes as long as its launch.
        timed, together, stop = 0, 1, time.perf_counter() + PEAK_BUDGET_S / len(sizes)
        product = partial(torch.matmul, a, b, out=out)
        while timed < FEWEST or time.perf_counter() < stop:
            seconds = gpu_seconds_of(product, together) if on_gpu else seconds_of(product, device)
            timed += 1
            if together * flops / seconds > best:
                best, best_size = together * flops / seconds, size
            if on_gpu:
                together = max(round(TOGETHER_S * together / seconds), 1)
    return best, best_size


def reference_steps(
    context: RankContext,
    strategies: Sequence[str] | None,
    *,
    quick: bool,
    progress: Progress,
) -> tuple[ReferenceStep, ...]:
    """The reference steps of these strategies, None for all, each start in new processes.

    All ranks must call this.

    Two processes that run the same step differ by more than the steps within each, because of their
    memory layout and of what else the machine does. A process that has worked before also keeps
    memory that a run, which is a new process, has to request from the system again and again. If
    there are several ranks, the one-rank steps run on all of them at once, each by itself. Raises
    LabError if a process fails.
    """
    names = tuple(STRATEGIES if strategies is None else strategies)
    alone = context.world_size == 1
    full, fewer = (STARTS, QUICK_STARTS) if alone else (STARTS_TOGETHER, QUICK_STARTS_TOGETHER)
    count = fewer if quick else full
    # Little is predicted from the others on one rank, so one process is enough for them.
    starts = [PLAIN if alone and start else names for start in range(count)]
    turns = []
    for number, chosen in enumerate(starts):
        progress("steps in new processes", number, count)
        rank = replace(context, rendezvous=context.rendezvous.with_suffix(f".steps{number}"))
        turns.append(_in_new_process(rank, chosen, first=number == 0))
    progress("steps in new processes", count, count)
    by_run = grouped((step.run, step) for turn in turns for step in turn)
    return tuple(map(pooled, by_run.values()))


def _in_new_process(
    context: RankContext, strategies: Sequence[str], *, first: bool
) -> tuple[ReferenceStep, ...]:
    """A turn of this rank in a fork of a process that has computed nothing; LabError if it fails.

    Such a process has no threads that a fork would lack. A spawned one takes longer to begin.
    """
    # The server listens at a path below TMPDIR, which may have no more than 107 bytes (unix(7)).
    short = len(os.fsencode(tempfile.gettempdir())) < 70
    processes: Any = multiprocessing.get_context("forkserver" if short else "spawn")
    processes.set_forkserver_preload(["lab.worker.preload", __name__])
    ours, theirs = processes.Pipe(duplex=False)
    process = processes.Process(target=_start, args=(context, strategies, first, theirs))
    process.start()
    theirs.close()
    try:
        steps = ours.recv()
    except EOFError:
        steps = "their process was killed"
    except BaseException:
        process.kill()
        raise
    process.join()
    if isinstance(steps, str):
        raise LabError(f"the reference steps failed:\n{steps[-2000:]}")
    return tuple(steps)


def _turn(
    context: RankContext, device: torch.device, strategies: Sequence[str], *, first: bool
) -> tuple[ReferenceStep, ...]:
    steps = []
    for run in reference_runs(context.world_size):
        if run.strategy not in strategies:
            continue
        alone = replace(context, rank=0, world_size=1) if run.world_size == 1 else context
        dataset = data.prepare(run, data_root=Path(), progress=silent)
        # If torch is too old for a strategy, it is too old on every rank.
        with suppress(InputError):
            steps.append(_step(RankJob(run, alone, device, dataset, silent), first=first))
    return tuple(steps)


def _step(job: RankJob, *, first: bool) -> ReferenceStep:
    run, training = job.run, train(job)
    measured = slice(run.warmup_steps, None)
    # Together, all ranks wait for the slowest in each step; alone, each has its own median.
    ranks = np.stack(all_gather_object(training.steps["step_time"][measured]))
    low, middle, high = np.percentile(ranks[0], (10, 50, 90))
    together = ranks.max(axis=0) if run.world_size > 1 else np.median(ranks, axis=1).max()
    return ReferenceStep(
        run=run,
        seconds=(float(np.median(together)),),
        spread=float((high - low) / P10_TO_P90 / middle),
        phases={name: float(np.median(training.steps[name][measured])) for name in PHASES},
        # Gradients become ready at much the same time in each process: one start is enough.
        gradients=tuple(readiness(training, job) or ()) if first else (),
    )


def _start(
    context: RankContext, strategies: Sequence[str], first: bool, answer: Connection
) -> None:
    try:
        torch.set_num_threads(context.threads)
        device = device_of(context)
        with process_group(context, device=device):
            steps = _turn(context, device, strategies, first=first)
        answer.send(steps)
    except Exception:  # noqa: BLE001 raised again as a LabError
        answer.send(traceback.format_exc().strip())
