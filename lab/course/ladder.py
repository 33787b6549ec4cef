"""The ladder: eight files written by the learner, each judged by running it on real ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from lab.course.check import require
from lab.course.language import tr
from lab.perfmodel.collectives import bus_factor

EXACT = 1e-8  # of parameters in fp64, whose rounding error is far smaller
CARRIED = 0.9  # the smallest share of an exchange's bytes that the kernel must have carried
STEPS = 20
SAMPLES = 48  # of each rank in each step
CUT = {"column_weight": 0, "column_bias": 0, "row_weight": 1}  # by which axis; others are whole
KINDS = ("forward", "backward")  # of the passes of a pipeline, by number
BUCKETS = (1, 1 << 18, 1 << 30)  # bytes: each gradient by itself, some together, all together


@dataclass(frozen=True)
class Trial:
    """One setting on all ranks: the calls and times that each reported, and its arrays."""

    facts: list[dict[str, Any]]
    arrays: list[dict[str, Any]]

    @property
    def calls(self) -> list[tuple[str, int, str, str]]:
        """Calls of rank 0 in the last step: operation, bytes, laps of launch and wait."""
        return [tuple(call) for call in self.facts[0]["calls"]]

    @property
    def step_s(self) -> float:
        """The largest of the ranks' median steps, in s."""
        return float(max(fact["step_s"] for fact in self.facts))


@dataclass(frozen=True)
class Evidence:
    """The judge's input; `expected` holds arrays of `single`, or of the formula."""

    world_size: int
    trials: list[Trial]
    expected: dict[str, Any]
    spec: Mapping[str, Any]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters of `single`, and of their gradients."""
        return sum(value.nbytes for value in self.expected.values())


Instance = tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder: a file, what it must define, and how it is run and judged.

    `questions` are asked first, `formula` is shown after three tries. `task` is what its ranks do,
    on what INSTANCES draw. `own` is the lab's strategy that the file is timed against.
    """

    file: str
    needs: str
    judge: Callable[[Evidence], str]
    questions: tuple[str, str]
    formula: str
    task: str = "strategy"
    trials: tuple[dict[str, Any], ...] = ({},)
    own: dict[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = (2,)  # world sizes at which a grader runs it


def _tensors(draw: np.random.Generator, world_size: int) -> Instance:
    lengths = draw.integers(1000, 3000, 2) * world_size + draw.integers(1, 4, 2)
    arrays = [
        {f"values{place}": draw.normal(size=length) for place, length in enumerate(lengths)}
        for _ in range(world_size)
    ]
    return {"steps": 3}, arrays, {}


def _samples(draw: np.random.Generator, world_size: int) -> Instance:
    widths = [24, *draw.integers(150, 220, draw.integers(4, 6)).tolist(), 8]
    shape = (world_size, STEPS, SAMPLES)
    inputs, targets = draw.normal(size=(*shape, widths[0])), draw.normal(size=(*shape, widths[-1]))
    arrays = [
        {"inputs": mine, "targets": wanted} for mine, wanted in zip(inputs, targets, strict=True)
    ]
    whole = {"inputs": np.concatenate(inputs, axis=1), "targets": np.concatenate(targets, axis=1)}
    return {"widths": widths, "seed": int(draw.integers(2**31))}, arrays, whole


def _matrices(draw: np.random.Generator, world_size: int) -> Instance:
    width, hidden, outputs = 12, 8 * world_size, 10
    first, second = draw.normal(size=(hidden, width)), draw.normal(size=(outputs, hidden))
    whole = {
        "column_weight": first / width**0.5,
        "column_bias": draw.normal(size=hidden),
        "row_weight": second / hidden**0.5,
        "row_bias": draw.normal(size=outputs),
        "inputs": draw.normal(size=(5, 16, width)),
        "targets": draw.normal(size=(5, 16, outputs)),
    }
    arrays = [
        {name: _part(name, value, rank, world_size) for name, value in whole.items()}
        for rank in range(world_size)
    ]
    return {}, arrays, whole


def _part(name: str, whole: Any, rank: int, world_size: int) -> Any:
    """What a rank has of an array of the tensor-parallel rung."""
    return np.split(whole, world_size, CUT[name])[rank] if name in CUT else whole


def _pipeline(draw: np.random.Generator, world_size: int) -> Instance:
    micro_batches, width = int(draw.integers(world_size + 2, world_size + 6)), 6
    inputs, targets = draw.normal(size=(2, micro_batches, 4, width))
    weights = draw.normal(size=(world_size, width, width))
    arrays = [
        # For the first stage the values count, for the others only the shape.
        {"weight": weight, "inputs": inputs if rank == 0 else 0 * inputs}
        | ({"targets": targets} if rank == world_size - 1 else {})
        for rank, weight in enumerate(weights)
    ]
    whole = {"inputs": inputs, "targets": targets, "weights": weights}
    return {"micro_batches": micro_batches}, arrays, whole


def _ring(evidence: Evidence) -> str:
    n = evidence.world_size
    for place, trial in enumerate(evidence.trials):
        right = sum(arrays[f"values{place}"] for arrays in evidence.spec["arrays"])
        for rank, arrays in enumerate(trial.arrays):
            require(
                arrays["result"].shape == right.shape
                and bool(np.allclose(arrays["result"], right, rtol=1e-9)),
                "With {n} ranks and {numbers} numbers, rank {rank} does not end with the sum.",
                n=n,
                numbers=len(right),
                rank=rank,
            )
        names = {operation for operation, *_ in trial.calls}
        require(
            names <= {"send", "receive"},
            "Use messages between neighbours, not {names}.",
            names=", ".join(sorted(names)),
        )
        sent = sum(size for operation, size, *_ in trial.calls if operation == "send")
        least = bus_factor("all_reduce", n) * right.nbytes
        require(
            sent <= 1.02 * least + 64 * n,
            "Rank 0 sent {sent} bytes for a tensor of {size}; a ring sends {least:.0f}, one "
            "chunk in each round.",
            sent=sent,
            size=right.nbytes,
            least=least,
        )
    messages = sum(operation == "send" for operation, *_ in evidence.trials[0].calls)
    return tr(
        "{n} ranks hold the sum of every tensor; rank 0 sent {messages} messages for each, "
        "{factor:.2f} times the tensor's bytes in all.",
        n=n,
        messages=messages,
        factor=bus_factor("all_reduce", n),
    )


def _same_as_single(evidence: Evidence) -> str:
    worst = 0.0
    for trial in evidence.trials:
        for rank, arrays in enumerate(trial.arrays):
            require(
                arrays.keys() == evidence.expected.keys(),
                "Rank {rank} has {count} parameters, 'single' {expected}.",
                rank=rank,
                count=len(arrays),
                expected=len(evidence.expected),
            )
        apart = _apart(trial.arrays, trial.arrays[0])
        require(
            apart <= EXACT,
            "After five steps the ranks hold parameters that are up to {apart:.1e} apart. Did "
            "they begin with the same values, and is every gradient the same on all ranks?",
            apart=apart,
        )
        worst = max(worst, _apart(trial.arrays, evidence.expected))
    require(
        worst <= EXACT,
        "After five steps all ranks agree with each other, but not with one rank that has all "
        "samples: parameters differ by up to {worst:.1e}. Do they apply the mean of the gradients?",
        worst=worst,
    )
    return tr(
        "After five steps parameters are those of 'single', to within {worst:.0e}.", worst=worst
    )


def _apart(ranks: Sequence[Mapping[str, Any]], others: Mapping[str, Any]) -> float:
    """The largest difference between arrays of any rank and the others; NaN if one holds it."""
    return float(
        np.max([np.abs(one[name] - other).max() for one in ranks for name, other in others.items()])
    )


def _reduced(evidence: Evidence, trial: Trial, *, calls: int | None = None) -> str:
    size = evidence.parameter_bytes
    others = {operation for operation, *_ in trial.calls} - {"all_reduce"}
    require(
        not others, "Steps call {names}; all_reduce is enough.", names=", ".join(sorted(others))
    )
    sent = sum(call[1] for call in trial.calls)
    require(
        sent == size,
        "A step reduces {sent} bytes; the gradients have {size} bytes.",
        sent=sent,
        size=size,
    )
    count = len(trial.calls)
    require(
        calls is None or count == calls,
        "A step makes {count} calls; {calls} are enough.",
        count=count,
        calls=calls,
    )
    return tr(
        "Calls in each step: {count}, with {size:.2f} MB in all.", count=count, size=size / 1e6
    )


def _hidden(trial: Trial) -> float:
    """The share of link time that overlapped with the backward pass, on the worst rank."""
    early = [call for call in trial.calls if call[2] == "backward" and call[3] != "backward"]
    require(
        bool(early),
        "No call is launched in the backward pass and left in flight: each is waited for at "
        "once, or launched when the pass is over.",
    )
    shares = [1 - fact["exposed_s"] / fact["total_s"] for fact in trial.facts]
    require(min(shares) > 0, "Nothing is hidden: the ranks wait for the whole time on the link.")
    return float(min(shares))


def _exchanged(evidence: Evidence, *, flat: bool = False, hides: bool = False) -> str:
    same, trial = _same_as_single(evidence), evidence.trials[0]
    sentences = [same, _reduced(evidence, trial, calls=1 if flat else len(evidence.expected))]
    if hides:
        sentences.append(tr("{share:.0%} of the time on the link is hidden.", share=_hidden(trial)))
    return " ".join(sentences)


def _buckets(evidence: Evidence) -> str:
    same = _same_as_single(evidence)
    counts = [len(trial.calls) for trial in evidence.trials]
    for trial in evidence.trials:
        _reduced(evidence, trial)
    tensors = len(evidence.expected)
    require(
        counts[0] == tensors and counts[-1] == 1,
        "Buckets of 1 byte make {smallest} calls for {tensors} gradients, and one that holds "
        "all makes {largest}.",
        smallest=counts[0],
        tensors=tensors,
        largest=counts[-1],
    )
    require(
        1 < counts[1] < tensors,
        "Buckets of {size} bytes make {calls} calls: some gradients should share one.",
        size=BUCKETS[1],
        calls=counts[1],
    )
    first, second, _ = evidence.trials
    sweep = tr(
        "From small to large buckets a step makes {counts} calls and takes {steps} ms; with the "
        "first two sizes {first:.0%} and {second:.0%} of the time on the link is hidden.",
        counts=", ".join(map(str, counts)),
        steps=", ".join(f"{1e3 * trial.step_s:.1f}" for trial in evidence.trials),
        first=_hidden(first),
        second=_hidden(second),
    )
    return f"{same} {sweep}"


def _zero1(evidence: Evidence) -> str:
    same, trial, n = _same_as_single(evidence), evidence.trials[0], evidence.world_size
    size = evidence.parameter_bytes
    for operation in ("reduce_scatter", "all_gather"):
        moved = sum(call[1] for call in trial.calls if call[0] == operation)
        require(
            size <= moved <= 1.01 * size + 64 * n,
            "A step moves {moved} bytes by {operation}; the parameters have {size} bytes.",
            moved=moved,
            operation=operation,
            size=size,
        )
    whole = sum(value.size for value in evidence.expected.values())
    kept = max(fact["state"] for fact in trial.facts)
    require(
        kept <= 2 * whole / n * 1.01 + 64,
        "A rank keeps {kept} numbers of the optimizer's state, not only its part of {whole}.",
        kept=kept,
        whole=2 * whole,
    )
    part = tr(
        "A rank keeps {kept} numbers of the optimizer's state, {share:.0%} of all; reduce-scatter "
        "and all-gather together move the bytes of one all-reduce.",
        kept=kept,
        share=kept / (2 * whole),
    )
    return f"{same} {part}"


def _linear(evidence: Evidence) -> str:
    trial, n, right = evidence.trials[0], evidence.world_size, evidence.expected
    for rank, arrays in enumerate(trial.arrays):
        for name, what in (
            ("output0", tr("the outputs of 'row'")),
            ("input_grad0", tr("the gradient of the inputs")),
        ):
            actual, wanted = arrays[name], right[name]
            require(
                actual.shape == wanted.shape and bool(np.allclose(actual, wanted, atol=EXACT)),
                "On rank {rank}, {what} {misfit}.",
                rank=rank,
                what=what,
                misfit=_misfit(actual, wanted),
            )
        for name in (*CUT, "row_bias"):
            wanted = _part(name, right[name], rank, n)
            worst = float(np.abs(arrays[name] - wanted).max())
            require(
                worst <= EXACT,
                "After five steps {name} of rank {rank} is off by up to {worst:.1e}.",
                name=name,
                rank=rank,
                worst=worst,
            )
    reduced = [call for call in trial.calls if call[0] == "all_reduce"]
    require(
        len(reduced) == len(trial.calls) == 2,
        "A step makes {calls} calls; one forward and one backward are enough.",
        calls=len(trial.calls),
    )
    return tr(
        "Outputs, gradients and all parts of the weights on {n} ranks are those of whole "
        "matrices, with one all-reduce forward and one backward.",
        n=n,
    )


def _misfit(actual: Any, wanted: Any) -> str:
    if actual.shape != wanted.shape:
        return tr("have the shape {actual}, not {wanted}", actual=actual.shape, wanted=wanted.shape)
    return tr(
        "differ from those of the whole matrices by up to {worst:.1e}",
        worst=np.abs(actual - wanted).max(),
    )


def _order(evidence: Evidence) -> str:
    stages, trial = evidence.world_size, evidence.trials[0]
    micro_batches = evidence.spec["micro_batches"]
    orders = [[tuple(row) for row in arrays["order"].tolist()] for arrays in trial.arrays]
    for stage, passes in enumerate(orders):
        for kind, name in enumerate(KINDS):  # torch's words in any language
            passed = [which for what, which in passes if what == kind]
            require(
                passed == list(range(micro_batches)),
                "Stage {stage} makes its {name} passes of the micro-batches {passed}; each is due "
                "once, in order.",
                stage=stage,
                name=name,
                passed=passed,
            )
        most = peak(passes)
        require(
            most <= min(stages - stage, micro_batches),
            "Stage {stage} of {stages} keeps the activations of {most} micro-batches; "
            "{enough} are enough.",
            stage=stage,
            stages=stages,
            most=most,
            enough=min(stages - stage, micro_batches),
        )
    took = slots(orders)
    best = micro_batches + stages - 1
    require(
        took == 3 * best,
        "The pipeline takes {took} time slots (one for a forward pass, two for a backward "
        "pass); {enough} are enough.",
        took=took,
        enough=3 * best,
    )
    for stage, arrays in enumerate(trial.arrays):
        worst = float(np.abs(arrays["grad"] - evidence.expected[f"grad{stage}"]).max())
        require(
            worst <= EXACT,
            "The gradient of stage {stage} is off by up to {worst:.1e}.",
            stage=stage,
            worst=worst,
        )
    return tr(
        "{stages} stages and {micro_batches} micro-batches take {best} rounds, a bubble of "
        "{bubble:.0%}; the first stage keeps {kept} micro-batches, where GPipe keeps "
        "{micro_batches}.",
        stages=stages,
        micro_batches=micro_batches,
        best=best,
        bubble=(stages - 1) / best,
        kept=peak(orders[0]),
    )


def peak(passes: Sequence[tuple[int, int]]) -> int:
    """The most micro-batches whose activations a stage keeps; a pass is (0 or 1, number)."""
    return int(np.cumsum([1 if what == 0 else -1 for what, _ in passes]).max(initial=0))


def slots(orders: Sequence[Sequence[tuple[int, int]]]) -> int | None:
    """When the last stage is done; None if the stages deadlock."""
    ends = timetable(orders)
    return None if ends is None else max(ends.values(), default=0)


def timetable(
    orders: Sequence[Sequence[tuple[int, int]]],
) -> dict[tuple[int, int, int], int] | None:
    """When each pass ends, by stage, kind and micro-batch; a backward pass takes two slots.

    None if the stages deadlock. Messages take no time.
    """
    done: dict[tuple[int, int, int], int] = {}
    now, place = [0] * len(orders), [0] * len(orders)
    while any(place[stage] < len(passes) for stage, passes in enumerate(orders)):
        moved = False
        for stage, passes in enumerate(orders):
            while place[stage] < len(passes):
                kind, which = passes[place[stage]]
                giver = (stage - 1 if kind == 0 else stage + 1, kind, which)
                needed = 0 <= giver[0] < len(orders)
                if (needed and giver not in done) or (kind and (stage, 0, which) not in done):
                    break
                begin = max(now[stage], done[giver] if needed else 0)
                now[stage] = done[stage, kind, which] = begin + 1 + kind
                place[stage] += 1
                moved = True
        if not moved:
            return None
    return done


# By task, what draws the ranks' input: a specification, the arrays of each rank, and those of the
# reference.
INSTANCES: dict[str, Callable[[np.random.Generator, int], Instance]] = {
    "all_reduce": _tensors,
    "strategy": _samples,
    "linear": _matrices,
    "order": _pipeline,
}
_NAIVE = {"strategy": "naive_ddp"}
RUNGS: dict[str, Rung] = {
    "02.ring-all-reduce": Rung(
        file="ring.py",
        needs="all_reduce",
        task="all_reduce",
        judge=_ring,
        questions=(
            "In which round does a rank receive a chunk, and what does it do with it?",
            "If every rank waited for its message to arrive before it received one, who would "
            "ever receive?",
        ),
        formula="In round r of n - 1 rank k sends chunk k - r and adds what it receives to chunk "
        "k - r - 1; then, in n - 1 more, it sends chunk k + 1 - r and keeps what it receives as "
        "chunk k - r; all modulo n.",
        own=_NAIVE,
        ranks=(2, 3, 4),
    ),
    "03.naive-ddp": Rung(
        file="naive.py",
        needs="NaiveDDP",
        judge=_exchanged,
        questions=(
            "What must be equal on all ranks before the first step, and what after each?",
            "The loss is a mean over samples: what does that make the gradient of all samples?",
        ),
        formula="Broadcast every parameter from rank 0; after the backward pass divide every "
        "gradient by the number of ranks, and all-reduce it.",
        own=_NAIVE,
    ),
    "03.flat": Rung(
        file="flat.py",
        needs="FlatDDP",
        judge=partial(_exchanged, flat=True),
        questions=(
            "How do tensors of several shapes become one, and how do you get them back?",
            "Are the gradients that the optimizer reads those that you have averaged?",
        ),
        formula="torch.cat of the flattened gradients, one all_reduce, then split(sizes), view_as "
        "and copy_ into each gradient.",
        own=_NAIVE | {"flat": True},
    ),
    "03.hooks": Rung(
        file="hooks.py",
        needs="HookedDDP",
        judge=partial(_exchanged, hides=True),
        questions=(
            "What does dist.all_reduce return if it is not to wait?",
            "When may the optimizer read a gradient that is still on the link?",
        ),
        formula="In the hook call all_reduce(..., async_op=True) and keep the work it returns; in "
        "synchronize call wait() on each, then empty the list.",
        own={"strategy": "ddp"},
    ),
    "03.buckets": Rung(
        file="buckets.py",
        needs="BucketedDDP",
        judge=_buckets,
        trials=tuple({"bucket_bytes": size} for size in BUCKETS),
        questions=(
            "When is a bucket full, and who sends the last one, which is not?",
            "What do you have to keep of a bucket until its gradients can be unpacked?",
        ),
        formula="Collect gradients until their bytes reach bucket_bytes, then send them as one "
        "flat tensor; in synchronize send the rest, wait, split and copy back.",
        own={"strategy": "ddp"},
    ),
    "07.zero1": Rung(
        file="zero1.py",
        needs="ZeRO1",
        judge=_zero1,
        questions=(
            "Which part of the mean gradient does a rank need that updates one shard?",
            "After the step each rank has new values for one shard: how do the others get them?",
        ),
        formula="Divide by the ranks and reduce_scatter_single(mean, gradients); after the step "
        "all_gather_single(flat, shard).",
        own={"strategy": "zero1"},
    ),
    "08.parallel-linear": Rung(
        file="parallel_linear.py",
        needs="column",
        task="linear",
        judge=_linear,
        questions=(
            "Which of the two products is complete on each rank, and which is one term of a sum?",
            "Every rank's outputs depend on the inputs: what does that make the inputs' gradient?",
        ),
        formula="column: the inputs as they are, whose gradient is all-reduced; row: the product "
        "is all-reduced, then the bias is added once, and gradients pass as they are.",
    ),
    "08.one-f-one-b": Rung(
        file="schedule.py",
        needs="order",
        task="order",
        judge=_order,
        questions=(
            "How many micro-batches are in the stages after this one when its first gradient "
            "comes?",
            "Which pass frees memory, and so should be done as soon as it can be done?",
        ),
        formula="Stage s of p first passes p - s - 1 micro-batches forward, then takes one forward "
        "and one backward in turn, and ends with the backward passes that are left.",
        ranks=(2, 3),
    ),
}
