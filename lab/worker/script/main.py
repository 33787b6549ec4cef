"""Runs a user's script on a rank, and turns what its hooks saw into a measurement."""

from __future__ import annotations

import os
import re
import runpy
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from os import _exit  # while a script runs, that of `os` is replaced
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import distributed as dist

from lab.config.own import SCRIPT_OUT, Script
from lab.config.run import Run
from lab.errors import LabError
from lab.formatting import MOST_QUOTED, count, log_end
from lab.machine import Interrupted, age
from lab.records.schema import PHASES, Observed
from lab.worker import distributed, environment
from lab.worker.context import ENDING, Conclude, Measurement, Progress, RankContext
from lab.worker.distributed import ClockOffset
from lab.worker.environment import RankUse
from lab.worker.measure.clock import FloatArray, IntArray, clock_for, timing
from lab.worker.measure.collective_trace import Calls
from lab.worker.measure.ddp_hook import Buckets
from lab.worker.own import blamed, require_unchanged
from lab.worker.rank_report import (
    RankReport,
    fingerprint,
    memory_of,
    same_parameters,
    write_reports,
)
from lab.worker.script import meter
from lab.worker.script.hooks import StepRecorder, StepsDone, installed
from lab.worker.script.processes import OWN_RANKS, end_children, one_process

CPU = torch.device("cpu")
MOST_LOG = 5000  # bytes of the end of a log in which its last line is looked for
# Of "GPU" only a sentence that lacks or wants one: a message may speak of "multi-GPU training".
LACKS = r"\b(?:no|not|needs?|requires?|only|unable|without|available|found)\b"
# What torch and libraries say of something that only a GPU can do.
NOT_ON_CPU = (
    r"\bcpu\b[^.;]*(?:(?:n't|\bnot) support|\bno attribute)|"
    r"\bnot (?:supported|implemented)\b[^.;]*\bcpu\b"
)
NEEDS_GPU = re.compile(
    r"cuda|nccl|nvidia|triton|accelerator device|"
    rf"{LACKS}[^.;]*\bgpus?\b|\bgpus?\b[^.;]*{LACKS}|{NOT_ON_CPU}",
    re.IGNORECASE,
)
NEEDS_SLURM = re.compile(r"variable SLURM_\w+ is not set")
NO_PACKAGE = "attempted relative import with no known parent package"
NOT_FOUND = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
OTHER_RANKS = re.compile(r"\bmatch\b.*\bworld[ _]size\b", re.IGNORECASE | re.DOTALL)
READS_INPUT = "EOF when reading a line"
NEEDS_SHARED_MEMORY = re.compile("unable to allocate shared memory")
NO_OPTIMIZER = (
    "A script without such an optimizer can mark its steps itself (`meter.end_step()` of "
    "lab.instrument). If it trains in processes that it starts itself, measure what they run, as "
    "the lab starts the ranks like torchrun, or let it time its steps, and give the table to "
    "`lab report`"
)
OTHERS = "others made steps too (lab.instrument(model, optimizer) names the one to count)"


@dataclass
class ScriptRank:
    """One rank of a script's run: what it reads at its steps, and what the ranks make of it."""

    run: Run
    script: Script
    context: RankContext
    folder: Path
    progress: Progress
    conclude: Conclude | None

    def __post_init__(self) -> None:
        context = self.context
        self.device = distributed.device_of(context)
        self.clock = clock_for(self.device)
        self.offset = ClockOffset(0.0, 0.0)
        if context.nodes > 1:
            # Once before and once after the script, as the clocks of two hosts drift.
            with distributed.process_group(context, device=self.device):
                self.offset = distributed.read_clock_offset()
            rendezvous = context.rendezvous.with_suffix(".script")
            self.context = context = replace(context, rendezvous=rendezvous)
        self.setup_time = 0.0
        self.cpu_times: list[float] = []
        self._cpu = time.process_time()
        self._machine = environment.MachineWatch(context, self.device)
        self._use: RankUse | None = None  # known once the last step is done
        self.recorder = StepRecorder(
            self.clock,
            world_size=context.world_size,
            on_step=self._after,
            on_caught=self._leave,
        )

    def _after(self, step: int) -> None:
        """Take the readings due after a step."""
        now = time.process_time()
        self.cpu_times.append(now - self._cpu)
        if step == 1:
            # Those of all groups formed by the script.
            distributed.pace_sockets(self.context.emulated)
            self.setup_time = age() - self.context.waited_s
            if self.device.type == "cpu":  # a script may read a GPU's counters itself
                environment.reset_peak(self.device)
        if step == self.run.warmup_steps:
            self._machine.restart()
        phase = "measuring" if step > self.run.warmup_steps else "warm-up"
        self.progress(phase, step, self.run.steps)
        if step == self.run.steps:
            self._use = self._machine.stop()
            self.recorder.finish()
            self.progress(ENDING, step, self.run.steps)
        self._cpu = now

    def _leave(self, reason: str) -> None:
        """End this rank from within a script that no exception ends."""
        if self.conclude is None:
            return
        sys.stdout.flush()
        sys.stderr.write(
            f"lab: {self.script.name} goes on after its last step because {reason}; its process is "
            "ended instead\n"
        )
        status = 1
        try:
            status = self.conclude(self.collect)
        finally:
            sys.stderr.flush()
            _exit(status)

    def collect(self) -> Measurement | None:
        """What the ranks measured, made into a measurement by rank 0; all ranks must call it."""
        if self.recorder.steps < self.run.steps:  # it ended by itself
            self._use = self._machine.stop()
            self.clock.discard()  # the step after the last
        self.progress("collecting", self.run.steps, self.run.steps)
        # The script may or may not have left its group, so the ranks meet in a new one.
        if dist.is_initialized():
            distributed.leave_group()
        with ExitStack() as stack:
            self._meet(stack)
            offsets = self.offset, distributed.read_clock_offset()
            steps = set(distributed.all_gather_object(self.recorder.steps))
            if len(steps) > 1:
                numbers = " and ".join(map(str, sorted(steps)))
                raise LabError(
                    f"the ranks of {self.script.name} took {numbers} steps; they must match, so "
                    f"measure no more than {min(steps)} (--steps of `lab measure`)"
                )
            reports = distributed.gather(self._report(offsets))
        return None if reports is None else self._measurement(reports)

    def _meet(self, stack: ExitStack) -> None:
        """Form a group of the ranks, to be left by `stack`; LabError if some never get here."""
        # Before the watchdog ends those ranks, which only wait for this one.
        began, patience = time.monotonic(), 0.9 * self.context.timeout_s
        place = self.context.rendezvous.with_suffix(".reports")
        context = replace(self.context, rendezvous=place, timeout_s=patience)
        try:
            stack.enter_context(
                distributed.process_group(
                    context, device=CPU, over="gloo", alone=False, patience_s=patience
                )
            )
        except (LabError, RuntimeError) as error:
            if time.monotonic() - began < patience:
                raise
            done = count(self.recorder.steps, "step")
            raise LabError(
                f"{self.script.name} finished after {done} on this rank, but {patience:.0f} s "
                "later not on all others: all ranks must take the same number of steps"
            ) from error

    @property
    def _phases(self) -> tuple[str, ...]:
        """The phases to report: those that were observed, and the rest if the passes were."""
        phases = self.recorder.phases - {"other"}
        if {"forward", "backward"} <= phases:
            phases |= {"other"}
        return tuple(phase for phase in PHASES if phase in phases)

    def _report(self, offsets: tuple[ClockOffset, ClockOffset]) -> RankReport:
        shift = partial(distributed.on_clock_of_rank_0, offsets=offsets)
        laps, trainers = self.clock.read(), list(self.recorder.optimizers.values())
        start = float(self.clock.phases(0)[0][1])
        calls = self.recorder.calls.take() if self.recorder.calls else None
        sent: Buckets | Calls | None = calls if calls and len(calls.step) else None
        passes: IntArray | None = None
        if self.recorder.buckets is not None:
            sent, passes = _buckets(self.recorder, start + laps["start"])
        if self.recorder.hidden or (self.recorder.calls and self.recorder.calls.compiled):
            sent = None
        # Every rank alike or none, as a rank without any would leave the others waiting.
        kind = None if sent is None else 0 if passes is None else crc32(passes.tobytes())
        kinds = set(distributed.all_gather_object(kind))
        if None in kinds or len(kinds) > 1:
            sent = None
        weights = self.recorder.weights
        # Shards differ; and of ranks that were seen to communicate, it is unknown what must agree.
        alone = sent is None and not _sharded(weights)
        columns = {"step_time", "start", *self._phases}
        assert self._use is not None
        report = RankReport(
            use=self._use,
            state=environment.state_bytes(weights, *trainers),
            steps={name: values for name, values in laps.items() if name in columns}
            | {"cpu_time": np.array(self.cpu_times)},
            start=start,
            sent=sent,
            passes=passes,
            calls=calls if isinstance(sent, Buckets) else None,
            fingerprint=fingerprint(weights) if alone else None,
        )
        rank, warmup_steps = self.context.rank, self.run.warmup_steps
        return report.on_clock_of_rank_0(rank, self.clock, shift, warmup_steps=warmup_steps)

    def _measurement(self, reports: Sequence[RankReport]) -> Measurement:
        """What rank 0 makes of all ranks' reports; writes their Parquet files."""
        run, recorder = self.run, self.recorder
        comparable = len(reports) > 1 and all(report.fingerprint for report in reports)
        done = run.model_copy(update={"steps": recorder.steps})
        communication = write_reports(done, reports, self.folder, first_step=0)
        laps = ("step_time", "start", *self._phases)
        return Measurement(
            timing=timing(
                {name: np.stack([report.steps[name] for report in reports]) for name in laps},
                warmup_steps=run.warmup_steps,
                setup_time=self.setup_time,
                samples_per_step=run.global_batch_size or recorder.samples_per_step,
                phases=self._phases,
            ),
            communication=communication,
            checks={"same_parameters": same_parameters(reports)} if comparable else {},
            memory=memory_of(reports, self.device),
            environment=environment.environment(
                self.context,
                device=self.device,
                ranks=[report.use for report in reports],
            ).model_copy(update={"backend": recorder.backend if len(reports) > 1 else None}),
            script=Observed(
                steps=recorder.steps,
                ended="by itself" if recorder.steps < run.steps else "by the lab",
                optimizer=type(recorder.optimizer).__name__ if recorder.optimizer else None,
                optimizers=len(recorder.optimizers.keys() - recorder.inner),
                wrappers=sorted(
                    {type(one).__name__ for one in recorder.called or recorder.modules}
                ),
                samples_per_step=recorder.samples_per_step,
            ),
        )


def measure_script(
    run: Run,
    context: RankContext,
    *,
    data_root: Path,
    folder: Path,
    progress: Progress,
    conclude: Conclude | None = None,
) -> Measurement | None:
    """Measure one repeat of a script; the measurement on rank 0, else None.

    Works like `measure` for the lab's own training. `conclude` ends a rank whose script goes on
    after its last step. Raises LabError for a script that changed since it was planned, fails, or
    makes no step beyond the warm-up.
    """
    script = run.script
    assert script is not None
    require_unchanged(script, script.name, data_root)
    torch.set_num_threads(context.threads)
    rank = ScriptRank(run, script, context, folder, progress, conclude)
    progress(f"starting {script.name}", 0, run.steps)
    meter.recorder = rank.recorder
    hooks = installed(rank.recorder)
    with _advised(script, rank.context):
        run_script(script, run, rank.context, hooks, data_root=data_root, out=folder / SCRIPT_OUT)
        _require_steps(rank.recorder, run, script)
    measurement = rank.collect()
    if rank.recorder.steps == run.steps:
        end_children(script.name)
    return measurement


def run_script(
    script: Script,
    run: Run,
    context: RankContext,
    hooks: AbstractContextManager[None],
    *,
    data_root: Path,
    out: Path,
) -> None:
    """Run a script with hooks to its end or its last step, as `torchrun` would on this rank."""
    path = script.path(data_root)
    out.mkdir(exist_ok=True)
    values = {name: getattr(run, name) for name in Run.model_fields}
    values |= {"rank": context.rank, "local_rank": context.local_rank, "out": out}
    sys.argv = [str(path), *script.arguments(values)]
    sys.path.insert(0, str(script.root(data_root)))
    os.chdir(data_root / script.directory)
    store = None
    if script.launcher == "torchrun":
        store = distributed.open_store(context)
        os.environ.update(_torchrun(context, store.underlying_store))
    with _interrupts() as interrupted, one_process(), hooks:
        try:
            # By SystemExit a script may end well; what to do about its errors is in `_advice`.
            with blamed(script.name, but=SystemExit, advice={}):
                if script.module:
                    runpy.run_module(script.module, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(str(path), run_name="__main__")
        except StepsDone:
            pass
        except SystemExit as end:
            if end.code not in (None, 0):
                raise LabError(f"{script.name} ended {_status(end.code)}") from end
        finally:
            meter.recorder = None
            # Some scripts catch it to save their state, and end as if everything was done.
            if interrupted:
                raise Interrupted(*interrupted)


def _status(code: object) -> str:
    """How a script ended, by what it passed to `sys.exit`."""
    if not isinstance(code, int):
        return f"by sys.exit: {code}"
    return f"with exit status {code:d}{log_end(last_line()) or '; see its log'}"  # True is 1


def last_line() -> str:
    """The last line of this process's log, where argparse says what is missing; empty if none."""
    with suppress(OSError, ValueError, AttributeError):  # a script may close or replace them
        sys.stdout.flush()
        sys.stderr.flush()
    with suppress(OSError):
        log = os.fstat(2)
        if not stat.S_ISREG(log.st_mode):  # reading a terminal or a pipe could wait forever
            return ""
        with Path("/proc/self/fd/2").open("rb") as stream:
            stream.seek(max(log.st_size - MOST_LOG, 0))
            lines = stream.read().decode(errors="replace").splitlines()
        # Some loops end with a rule of dashes.
        texts = (line.strip() for line in reversed(lines) if any(map(str.isalnum, line)))
        return next(texts, "")[:MOST_QUOTED]
    return ""


def _torchrun(context: RankContext, store: Any) -> dict[str, str]:
    """The environment variables of torchrun, from which libraries see that it started a script.

    Ranks meet at rank 0's `store`, a TCPStore. The script's keys in it contain no secret, as torch
    reads none from the environment: anybody who can reach the address may use them too.
    """
    local = context.world_size // context.nodes
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or context.interface
    variables: dict[str, Any] = {
        **({"GLOO_SOCKET_IFNAME": interface} if interface else {}),
        "RANK": context.rank,
        # If the scheduler shows each rank only its own GPU, that one is number 0.
        "LOCAL_RANK": context.local_rank
        if context.device == "cpu"
        else torch.cuda.current_device(),
        "WORLD_SIZE": context.world_size,
        "LOCAL_WORLD_SIZE": local,
        "GROUP_RANK": context.rank // local,
        "GROUP_WORLD_SIZE": context.nodes,
        "ROLE_RANK": context.rank,
        "ROLE_WORLD_SIZE": context.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": store.host,  # rank 0's, which another node knows only from its file
        "MASTER_PORT": store.port,
        "TORCHELASTIC_RUN_ID": context.job_id or "lab",
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        # Rank 0 is already listening, so no other process can take its port.
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }
    return {name: str(value) for name, value in variables.items()}


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Note signals that raise KeyboardInterrupt, as that of a Ctrl-C does."""
    noted: list[int] = []

    def note(earlier: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        try:
            earlier(number, frame)
        except KeyboardInterrupt:
            noted.append(number)
            raise

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, earlier in handlers.items():
        if callable(earlier):
            signal.signal(number, partial(note, earlier))
    try:
        yield noted
    finally:
        for number, earlier in handlers.items():
            signal.signal(number, earlier)


@contextmanager
def _advised(script: Script, context: RankContext) -> Iterator[None]:
    """Say what to do about a failure for want of something that the cluster lacks."""
    try:
        yield
    except LabError as error:
        if advice := _advice(str(error), script, context):
            raise LabError(f"{str(error).rstrip('.')}. {advice}") from error
        raise


def _advice(message: str, script: Script, context: RankContext) -> str:
    if NEEDS_SLURM.search(message) and "SLURM_JOB_ID" not in os.environ:
        return (
            f"The ranks of cluster {context.cluster!r} are not started by Slurm: measure it on a "
            "cluster with Slurm (--cluster), or let it read torchrun's RANK and WORLD_SIZE"
        )
    if NEEDS_GPU.search(message) and context.device == "cpu":
        alone = "; or, if it wants a GPU only under torchrun, try --launcher python --ranks 1"
        return (
            f"The ranks of cluster {context.cluster!r} train on CPUs: let the script do so, if it "
            "can (with gloo), or measure it on a cluster with GPUs (--cluster)"
            f"{alone if script.launcher == 'torchrun' else ''}"
        )
    if OTHER_RANKS.search(message):
        return (
            f"It is measured on {count(context.world_size, 'rank')}: let it take their number from "
            "WORLD_SIZE or an argument {world_size} instead of one of its own"
        )
    missing = NOT_FOUND.search(message)
    if NO_PACKAGE in message or _lies_here(missing):
        parts = Path(os.path.relpath(script.command[0])).with_suffix("").parts
        if script.module or len(parts) == 1:
            name = script.module or parts[0]
            return (
                "If the folder where it lies is its package, measure it from the folder above, by "
                f"its module's name: `-m {Path.cwd().name}.{name}`"
            )
        return (
            "To be found from where you are, a file within a package is measured by its module's "
            f"name: `-m {'.'.join(parts)}` in place of its path"
        )
    if missing:
        return (
            f"A script runs in the lab's own Python, {sys.executable}: install there what it "
            "imports, or start the lab from an environment that has both"
        )
    if READS_INPUT in message:
        return (
            "Nothing is typed or piped into a rank: give the script what it reads from standard "
            "input in its arguments or in a file"
        )
    if NEEDS_SHARED_MEMORY.search(message):
        return (
            "Loader processes hand over samples in /dev/shm, which is too small here: let the "
            "script start fewer or none, or give its container more (docker run --shm-size 2g)"
        )
    return ""


def _lies_here(missing: re.Match[str] | None) -> bool:
    """Whether a module that was not found beside the script is in the current folder."""
    return missing is not None and any(Path(missing[1] + end).exists() for end in ("", ".py"))


def _require_steps(recorder: StepRecorder, run: Run, script: Script) -> None:
    if (steps := recorder.steps) == 0:
        line = last_line()
        if OWN_RANKS.partition(",")[0] in line:  # the end of such a process's traceback
            raise LabError(f"{script.name} ended without a step: {OWN_RANKS}")
        end = log_end(line)
        cause = "" if NEEDS_GPU.search(end) else f". {NO_OPTIMIZER}"
        raise LabError(
            f"{script.name} ended without a step of an optimizer of torch.optim{end}{cause}"
        )
    if steps <= run.warmup_steps:
        counted = f" of its first optimizer; {OTHERS}" if len(recorder.optimizers) > 1 else ""
        raise LabError(
            f"{script.name} ended after {count(steps, 'step')}{counted}, but the first "
            f"{run.warmup_steps} are warm-up; let it take more, or lower warmup_steps"
        )


def _sharded(parameters: Sequence[torch.Tensor]) -> bool:
    from torch.distributed.tensor import DTensor  # takes 0.4 s, which would delay every script

    return any(isinstance(parameter, DTensor) for parameter in parameters)


def _buckets(recorder: StepRecorder, starts: FloatArray) -> tuple[Buckets | None, IntArray]:
    """The buckets of DDP, None unless every step sent some, and the backward pass of each."""
    assert recorder.buckets is not None
    steps, sent = len(starts), recorder.buckets.take()
    step = np.searchsorted(starts, sent.ready, side="right") - 1
    inside = (step >= 0) & (sent.ready < recorder.clock.phases(steps - 1)[-1][2])
    passes = np.array(recorder.passes, dtype=np.int64)[inside]
    step, (_, first, passes) = step[inside], np.unique(passes, True, True)
    complete = len(np.unique(step[first])) == steps
    return replace(sent.where(inside), step=step) if complete else None, passes
