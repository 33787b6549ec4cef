"""Pictures of the lessons that need no measurement: a ring, shares of memory, a schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from lab.course.ladder import KINDS, peak, timetable
from lab.course.lesson02_03_data_parallel import Ring
from lab.figures.style import COLORS
from lab.perfmodel.layout import SHARDED, Sharing
from lab.perfmodel.memory import MIXED, state_memory
from lab.report.blocks import Figure, drawn

Order = Sequence[tuple[str, int]]  # per stage: ("forward", 0), ..., ("backward", 0), ...
FORWARD, BACKWARD, PLAIN = "#56B4E9", "#0072B2", "#EEEEEE"
INK = {FORWARD: "black", BACKWARD: "white", PLAIN: "black"}
SHARINGS: dict[str, Sharing] = {
    "DDP": "ddp",
    "ZeRO-1": "zero1",
    "ZeRO-2": "zero2",
    "ZeRO-3, FSDP": "fsdp",
}


def chunks(ring: Ring) -> Figure:
    """What each rank of a `Ring` holds; arrivals of the last round are highlighted."""

    def draw(ax: Axes) -> None:
        for rank, row in enumerate(ring.chunks):
            for chunk, value in enumerate(row):
                new = (rank, chunk) in ring.arrived
                _cell(ax, chunk, rank, 1, f"{float(value.sum()):g}", FORWARD if new else PLAIN)
        names = [f"chunk {chunk}" for chunk in range(ring.n)]
        ax.set(xticks=[n + 0.5 for n in range(ring.n)], xticklabels=names, xlim=(0, ring.n))
        _rows(ax, [f"rank {rank}" for rank in range(ring.n)])

    contents = "; ".join(
        f"rank {rank} holds {', '.join(f'{float(value.sum()):g}' for value in row)}"
        for rank, row in enumerate(ring.chunks)
    )
    arrived = ", ".join(f"chunk {chunk} of rank {rank}" for rank, chunk in sorted(ring.arrived))
    return drawn(draw, f"After round {ring.rounds}, {contents}. Arrived: {arrived}.", height=1.6)


def shares(parameters: float, ranks: int, *, memory: float | None = None) -> Figure:
    """GB of weights, gradients and optimizer per rank by ZeRO stage; `memory` is a line."""
    parts = {
        name: state_memory(parameters, sharded=SHARDED[sharing], ranks=ranks, state=MIXED)
        for name, sharing in SHARINGS.items()
    }

    def draw(ax: Axes) -> None:
        left = [0.0] * len(parts)
        for color, field in zip(COLORS, ("weights", "gradients", "optimizer"), strict=False):
            widths = [getattr(part, field) / 1e9 for part in parts.values()]
            ax.barh(list(parts), widths, left=left, height=0.7, color=color, label=field)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        if memory is not None:
            ax.axvline(memory / 1e9, color="#595959", linestyle="--", label="memory of a GPU")
        ax.set(xlabel="GB on each rank")
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.legend(loc="lower right", fontsize=8.5)

    totals = ", ".join(f"{name} {part.total / 1e9:.3g} GB" for name, part in parts.items())
    return drawn(draw, f"State of a model on each of {ranks} ranks: {totals}.", height=2.4)


def schedule(orders: Sequence[Order]) -> Figure:
    """Passes of each stage of a pipeline over time, a backward pass as long as two forward ones.

    Raises ValueError for orders in which the stages deadlock.
    """
    numbered = [[(KINDS.index(kind), which) for kind, which in order] for order in orders]
    ends = timetable(numbered)
    if ends is None:
        raise ValueError("the stages wait for each other forever")
    length, stages = max(ends.values()), len(orders)
    waits = 1 - sum(1 + kind for _, kind, _ in ends) / (stages * length)
    kept = peak(numbered[0])

    def draw(ax: Axes) -> None:
        for (stage, kind, which), end in ends.items():
            color = BACKWARD if kind else FORWARD
            _cell(ax, end - 1 - kind, stage, 1 + kind, str(which), color)
        ax.set(xlim=(0, length), xlabel="time, in forward passes of a micro-batch")
        ax.set_title(
            f"bubble {100 * waits:.0f} %; the first stage keeps {kept} micro-batches at most",
            loc="left",
            fontsize="medium",
        )
        _rows(ax, [f"stage {stage}" for stage in range(stages)])

    alt = (
        f"A pipeline of {stages} stages over {length} slots of time: forward passes in light, "
        "backward passes in dark, each with the number of its micro-batch. Stages wait "
        f"{100 * waits:.0f} % of the time; the first keeps the activations of up to {kept} "
        "micro-batches."
    )
    return drawn(draw, alt, height=0.9 + 0.38 * stages)


def memory_of_step(
    *, state_bytes: float, gradient_bytes: float, layer_bytes: Sequence[float], kept_bytes: float
) -> Figure:
    """Memory over a training step, counted layer by layer, without and with recomputation.

    `layer_bytes` are the activations of each layer, of which recomputation keeps `kept_bytes`;
    `gradient_bytes` appear in the backward pass, in equal shares per layer.
    """
    plain = _step(state_bytes, gradient_bytes, layer_bytes, list(layer_bytes), again=0)
    kept = [kept_bytes] * len(layer_bytes)
    again = _step(state_bytes, gradient_bytes, layer_bytes, kept, again=1)
    tops = [max(total for _, total in curve) / 1e9 for curve in (plain, again)]

    def draw(ax: Axes) -> None:
        names = ("all activations kept", "recomputed")
        for color, name, curve, top in zip(COLORS, names, (plain, again), tops, strict=False):
            times, totals = zip(*curve, strict=True)
            label = f"{name}: {top:.3g} GB at the peak"
            ax.plot(times, [total / 1e9 for total in totals], color=color, label=label)
        ax.set(xlabel="time, in forward passes of a layer", ylabel="GB, counted", ylim=(0, None))
        ax.legend(loc="lower right", fontsize=8.5)

    alt = (
        "Memory rises layer by layer in the forward pass and falls in the backward pass: "
        f"{tops[0]:.3g} GB at the peak, {tops[1]:.3g} GB with recomputation, whose step is longer."
    )
    return drawn(draw, alt, height=2.8)


def _step(
    state: float, gradients: float, whole: Sequence[float], kept: Sequence[float], *, again: int
) -> list[tuple[float, float]]:
    """Time and bytes after each layer's pass; with `again`, including its second forward pass."""
    now, total = 0.0, state
    curve = [(now, total)]
    for size in kept:
        now, total = now + 1, total + size
        curve.append((now, total))
    for own, rest in zip(reversed(whole), reversed(kept), strict=True):
        if again:
            now, total = now + 1, total + own - rest
            curve.append((now, total))
        now, total = now + 2, total - own + gradients / len(whole)
        curve.append((now, total))
    return curve


def _cell(ax: Axes, x: float, row: int, width: float, text: str, color: str) -> None:
    ax.barh(row, width, left=x, height=0.86, color=color, edgecolor="white", linewidth=1)
    look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 8.5}
    ax.text(x + width / 2, row, text, color=INK[color], **look)


def _rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set(yticks=range(len(names)), yticklabels=names)
    ax.invert_yaxis()
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
