"""The sections of a record: times, communication, memory, quality, inference, environment."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from lab.config.base import Quantization
from lab.config.emulation import Emulated

# A number of each step, packed: those of 100,000 steps take 0.8 MB, as a list of floats 3.2.
Series = Annotated[
    Sequence[float],
    AfterValidator(lambda values: array("d", values)),
    PlainSerializer(list, return_type=list[float]),
]


def _with_offset(value: str) -> str:
    if datetime.fromisoformat(value).utcoffset() is None:
        raise ValueError("a time without its offset from UTC")
    return value


Moment = Annotated[str, AfterValidator(_with_offset)]  # ISO 8601, as written in UTC


class Section(BaseModel):
    """A part of a record; unknown keys are rejected, so that a typo hides no measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


class Stat(Section):
    """Steps or rounds: median, 10th and 90th percentile, bootstrap 95 % interval of the median."""

    median: float
    p10: float
    p90: float
    interval: tuple[float, float] | None  # None if there are too few values


def _positive(stat: Stat) -> Stat:
    if stat.median <= 0:
        raise ValueError("a time of 0 or less")
    return stat


# The parts of a step, in the order in which they happen; all in seconds.
PHASES = ("data", "h2d", "forward", "backward", "optimizer", "other")
# From 0.12 of two cores on, repeats differed by more than 4 % when tried; the same share of one
# core is stricter: what lost it takes 1 / (1 - 0.06) times as long, 6 % more.
FOREIGN_SHARE = 0.06
# Heat and a failing power supply slow a GPU down. Its power cap (sw_power_cap) does so in every
# demanding run, and is a property of the measured machine.
THROTTLES = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")


class Timing(Section):
    """Where the time of a step went, in seconds, without warm-up, compilation and evaluation.

    `step` is the time of each step's slowest rank; `phases` are those of the same rank in the same
    step, with the keys of PHASES that were observed; `per_rank` holds medians by rank of the step
    and of each phase. Rates are None if the samples of a step are unknown.
    """

    step: Annotated[Stat, AfterValidator(_positive)]
    phases: dict[str, Stat]
    per_rank: dict[str, list[float]]
    slowest_rank: int  # the rank that was the slowest most often
    measured_steps: int
    warmup_steps: int
    setup_time: float | None  # s, from rank 0's start to its first step, waits for devices left out
    train_time: float  # s, wall time of the measured steps on the slowest rank
    samples_per_second: float | None
    tokens_per_second: float | None = None
    # Model FLOP/s of all ranks together; None if they are not counted.
    flops_per_second: float | None
    mfu: float | None  # flops_per_second over peak_flops_per_second of all ranks
    peak_flops_per_second: float | None  # of one rank, dense, in the run's precision
    peak_source: str | None  # vendor figure with its source, or how it was measured


class Event(Section):
    """One bar of a timeline, in seconds from the earliest start of its step on any rank.

    `name` is forward, backward, optimizer, "bucket k" of DDP, or an operation such as all_reduce.
    Whatever goes over the link has `bytes`, and starts when it is handed to the link.
    """

    rank: int
    name: str
    start: float
    end: float
    ready: float | None = None  # when the gradients of a bucket were complete
    bytes: int | None = None  # of what goes over the link

    def later(self, seconds: float) -> Event:
        """The same bar, this much later."""
        ready = None if self.ready is None else self.ready + seconds
        times = {"start": self.start + seconds, "end": self.end + seconds, "ready": ready}
        return self.model_copy(update=times)


class Operation(Section):
    """One kind of collective or message, per step on one rank."""

    calls: int | float
    bytes: int


class Communication(Section):
    """What went over the links, per step: seconds of the slowest rank of each step, bytes per rank.

    None if not measured; at world size 1 nothing is sent, and only `ddp_overhead_time` can be set.
    `total` is the union of the times on the link of buckets, collectives and messages, `exposed`
    the time in which a rank only waited for them (with DDP from its last gradient on), `overlap`
    the rest; `straggler` is the part of `exposed` spent waiting for ranks that arrived later,
    `transfer` the rest. `bytes` counts the tensors that were reduced, gathered, scattered or sent;
    `bytes_moved` is what a rank sends for them if the ranks form a ring. `sync_cost` comes from
    another method: alternating rounds of forward and backward with and without synchronisation.

    If a strategy's steps differ and repeat after a cycle, numbers per step are means over it.
    """

    total: Stat | None = None
    exposed: Stat | None = None
    straggler: Stat | None = None
    transfer: Stat | None = None
    overlap: Stat | None = None
    exposed_in: dict[str, float] = {}  # medians of the exposed part by phase of the step
    bytes: int | None = None
    bytes_moved: int | None = None
    calls: int | float | None = None  # collectives and messages in the timeline's step, of rank 0
    operations: dict[str, Operation] = {}  # these calls by what they do
    buckets: list[int] | None = None  # bytes of each bucket of DDP on the link, in order
    per_rank: dict[str, list[float]] = {}  # medians by rank of total, exposed, straggler
    sync_cost: Stat | None = None  # slowest rank with synchronisation, less without; over rounds
    sync_exposed: Stat | None = None  # exposed in the same rounds, on the rank that others wait for
    stolen_compute: Stat | None = None  # sync_cost - sync_exposed, round by round
    ddp_overhead_time: Stat | None = None  # DDP's wrapper less the bare module, at world size 1
    cycle: list[int] = []  # bytes of each step of the last cycle, if the steps of a strategy differ
    timeline: list[Event] = []  # the median measured step on all ranks, of those that send most
    timeline_step: int | None = None  # its number in the run, from 1


class Gradient(Section):
    """A gradient: its bytes, and the fraction of the backward pass after which it is ready.

    `block` numbers the block that holds its parameter, as FSDP gathers them; None for the rest.
    """

    ready: float = Field(ge=0, le=1)
    bytes: int
    block: int | None = None


class Observed(Section):
    """What was observed of a script."""

    steps: int  # of the optimizer that counts
    ended: Literal["by the lab", "by itself"]  # once all steps were made, or before
    optimizer: str | None  # whose steps count; None where the script marks them
    optimizers: int  # that made steps
    wrappers: list[str] = []  # of the modules that it trains, such as DistributedDataParallel
    samples_per_step: int | None = None  # of all ranks, where the script says so


class Memory(Section):
    """Peak memory by rank, in bytes; by device if one process has several.

    `kind` is the resident set on CPUs, the allocator's peak on CUDA.
    """

    kind: Literal["resident", "cuda_allocated"]
    peak: list[int] = Field(min_length=1)
    parameters: int | None  # bytes of the parameters on one rank
    optimizer: int | None = None  # bytes of the optimizer's state on one rank


class RankMemory(Section):
    """Bytes of the tensors that one rank holds over a traced step, whose times are as in Trace.

    `held` are those before the step; `bytes` are the most in each of equally long parts of it.
    """

    start: float
    end: float
    held: int
    bytes: list[int]


class Trace(Section):
    """A step under torch's profiler, the last of a few after all that is timed; it is slower.

    Times are in seconds from its earliest start on any rank. `timeline` holds what the lab marked
    in it, `operators` when each rank ran operators (on a GPU kernels) that do not communicate. The
    `file` beside the record holds all of the traced steps on all ranks.
    """

    file: str = Field(pattern=r"^\w[\w.-]*$")
    timeline: list[Event]
    operators: list[Event]
    memory: list[RankMemory]  # by rank

    def idle(self, rank: int) -> float:
        """The share of the step in which a rank ran no operator."""
        step = self.memory[rank]
        busy = sum(one.end - one.start for one in self.operators if one.rank == rank)
        return 1 - busy / (step.end - step.start)


class Quality(Section):
    """What the model learned; `loss` is the training loss of each step over the global batch."""

    loss: Series
    validation_loss: float | None = None
    accuracy: float | None = None  # share of held-out samples whose class is found; of classifiers
    # Why the loss curve depends on how ranks split the batch; None if it must not.
    depends_on_split: str | None = None


class Failure(Section):
    """The first cause of a run that did not complete."""

    type: str
    message: str
    rank: int | None = None
    traceback: str = ""
    log: str = ""  # the last lines of the log of the rank that failed first

    @property
    def cause(self) -> str:
        """`ValueError: what is wrong`; without the type where the lab itself says what is wrong."""
        named = self.type not in {"LabError", "InputError"}
        return ": ".join(filter(None, [self.type if named else "", self.message]))


class GpuState(Section):
    """One GPU while its rank measured, in samples twice a second; clocks in MHz.

    `reasons` gives the share of samples in which something limited the clock, by NVML's name.
    """

    samples: int  # in which it was not idle
    sm_clock: float | None  # the median
    sm_clock_low: float | None
    sm_clock_max: float | None  # of this model of GPU
    reasons: dict[str, float] = {}
    # When the steps were done; None if the driver shows no process, as in a container.
    other_processes: int | None = None

    @property
    def throttled(self) -> list[str]:
        """What slowed it down for reasons other than its work."""
        return [name for name in THROTTLES if self.reasons.get(name, 0.0) > FOREIGN_SHARE]

    @property
    def disturbed(self) -> bool:
        """Whether it was shared with another process or throttled."""
        return bool(self.other_processes or self.throttled)


class Environment(Section):
    """Where and with what a run was measured, read inside the job."""

    cluster: str
    cluster_file: str | None = None  # of a profile that is not found by its name
    hosts: list[str]
    device: str  # cpu or cuda
    backend: str | None  # gloo or nccl; None at world size 1
    cpu: str
    cpu_count: int
    cpus_granted: list[list[int]]  # the cores of each rank
    threads_per_rank: int
    gpu: str | None = None
    gpu_count: int = 0
    driver: str | None = None
    versions: dict[str, str]
    git_commit: str | None = None
    git_dirty: bool | None = None
    slurm_job_id: str | None = None
    job_id: str | None = None
    data_sha256: str | None = None  # content hash of the training samples
    data_description: str | None = None
    # Of an epoch; None if samples overlap, like windows of a text.
    train_samples: int | None = None
    parameters: int | None = None  # trainable parameters of the whole model
    attention: str | None = None  # torch's attention kernel; None for models other than GPTs
    emulated: Emulated | None = None  # what was not real, and how it was emulated
    shared_host: bool = False  # other jobs could run beside it, on other devices
    # Cores' worth of other processes on the ranks' cores while measuring.
    foreign_cpu: float | None = None
    gpu_states: list[GpuState] | None = None  # of all ranks in order; None where none was sampled
    replay: str | None = None  # the source of a published row that this repeats; None: measured

    @property
    def profile(self) -> str:
        """What finds the cluster's profile: its name, or the path of its file."""
        return self.cluster_file or self.cluster

    @property
    def core_count(self) -> int:
        """The number of cores of all ranks, counting shared ones once; 0 if none is known."""
        hosts = self.hosts
        if len(hosts) != len(self.cpus_granted):  # one host alone stands for all ranks
            hosts = hosts[:1] * len(self.cpus_granted) if len(set(hosts)) == 1 else []
        pairs = zip(hosts, self.cpus_granted, strict=True) if hosts else ()
        return len({(host, core) for host, cores in pairs for core in cores})

    @property
    def foreign_share(self) -> float | None:
        """The share of the ranks' cores that other processes used; None if it is not known."""
        if self.foreign_cpu is None or not self.core_count:
            return None
        return self.foreign_cpu / self.core_count

    @property
    def was_watched(self) -> bool:
        """Whether anything is known about other use of the ranks' cores or GPUs."""
        return self.foreign_share is not None or bool(self.gpu_states)

    @property
    def gpus_disturbed(self) -> bool:
        """Whether a GPU of the ranks was shared with another process, or throttled."""
        return any(gpu.disturbed for gpu in self.gpu_states or ())

    @property
    def disturbed(self) -> bool:
        """Whether others used too much of the ranks' cores or GPUs for the times to be trusted."""
        share = self.foreign_share
        return self.gpus_disturbed or (share is not None and share > FOREIGN_SHARE)


class Allocation(Section):
    """What a scheduler allocated to the job that left a record, as far as it is known."""

    job_id: str  # Slurm's, with the index of the array's task: 17_3
    nodes: list[str]
    gpus: list[str] = []  # numbers of the GPUs on the first node, as the scheduler counts them
    cpus: int | None = None  # of all nodes together
    queue_time: float | None = None  # s, from the submission to the job's last start
    # How often the job was requeued and resumed from a checkpoint.
    requeues: int = 0


class Share(Section):
    """A mean over held-out samples with its paired bootstrap 95 % interval."""

    value: float
    low: float | None
    high: float | None


class Latency(Section):
    """How fast one model generates at one point; times in s, of the slowest rank, over rounds."""

    first_token: Stat  # prefill: from the prompt to the first token
    inter_token: Stat  # decode: the median time between tokens of each round
    p50: float  # of the time between two tokens, over all rounds
    p90: float
    p99: float
    total: Stat  # from the prompt to the last token
    prefill_tokens_per_second: float
    decode_tokens_per_second: float  # of all sequences on all ranks
    # Weights and cache that a rank reads for one token, in the middle of decoding.
    bytes_per_token: int
    # Of one rank in decoding: bytes_per_token over the median inter-token time.
    bytes_per_second: float


class Point(Section):
    """One prompt length and batch size; ratios are quantized over base: below 1 is faster."""

    prompt_tokens: int
    batch_size: int
    base: Latency
    quantized: Latency
    first_token_ratio: Stat
    inter_token_ratio: Stat
    total_ratio: Stat


class ClassificationPoint(Section):
    """One batch size of a classifier: s for a batch on the slowest rank, over rounds."""

    batch_size: int
    base: Stat
    quantized: Stat
    ratio: Stat  # round by round: below 1 is faster
    base_samples_per_second: float
    samples_per_second: float


Period = Literal["s", "min", "h", "day"]  # of rates
Unit = Literal["GPU", "node", "core", "rank"]  # that a table's world sizes count


class Reported(Section):
    """What a third-party table reports about one repeat; None if it reports nothing.

    `configuration` names the curve that it lies on, whose `scaling` may be unknown (""). `time` (s)
    is for a step, an epoch or the whole run, by `per`; `parts` are parts of it by their names in
    the audit. `rate` counts `rate_of` in a period, `rate_per`. `work` is the work done in the time,
    relative to the baseline's, whose run id is `baseline`; both are None if no speedup can be
    stated. `peak_memory` is in bytes, `mfu` a share of 1.
    """

    configuration: str
    scaling: Literal["strong", "weak", ""]
    per: Literal["step", "epoch", "total"]
    unit: Unit
    cores_per_rank: int | None = None  # by the threads of a rank, if it runs on cores
    time: float | None = None
    interval: tuple[float, float] | None = None  # as the table gives it: of the time, or the rate
    rate: float | None = None
    rate_of: str = ""
    rate_per: Period = "s"
    parts: dict[str, float] = {}
    gradient_bytes: float | None = None  # in fp32, if the table gives only the parameters
    peak_memory: float | None = None
    mfu: float | None = None
    baseline: str | None = None
    work: float | None = None


class Size(Section):
    """Bytes of a model's weights."""

    memory: int
    disk: int


class Inference(Section):
    """What an inference run measured; no points where the quantization is unavailable or wrong."""

    quantization: Quantization
    method: str = ""
    unavailable: str = ""  # why this machine cannot, or why nothing was timed
    quantize_time: float | None = None  # s
    base_size: Size
    size: Size | None = None
    output_errors: dict[str, float] = {}  # of logits, relative to the base, by shape of the input
    base_perplexity: float | None = None  # on held-out samples
    perplexity: float | None = None
    perplexity_ratio: Share | None = None  # quantized over base, paired by sample
    same_tokens: Share | None = None  # share of held-out positions with the same likeliest token
    generated_alike: float | None = None  # share of greedily generated tokens that are the same
    held_out_samples: int | None = None  # that both classifiers classified
    base_accuracy: float | None = None  # share of held-out samples that are classified right
    accuracy: float | None = None
    accuracy_change: Share | None = None  # quantized less base, paired by sample
    same_classes: Share | None = None  # share of held-out samples that both put into one class
    points: list[Point] = []
    classifications: list[ClassificationPoint] = []
    memory_bytes_per_second: float | None = None  # of a rank, measured in the job by copying
    arithmetic: str = ""  # vector instructions of a CPU, or the GPU's name
    model_sha256: str = ""  # of the base model's file
    trained_steps: int = 0
