"""How many curves are told apart: by panels, colours and dashes, from the words of their labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lab.figures.style import COLORS, IDEAL

DASHES = ("-", "--", ":", "-.")
MOST_PANELS = 4  # rows of them in a figure
MOST_IN_PANEL = 8  # curves whose colours and dashes stand for settings
MOST_ENTRIES = 12  # of a legend


class CurveStyle(NamedTuple):
    """Where and how a curve is drawn."""

    panel: str
    color: str
    dashes: str


class Arrangement(NamedTuple):
    """The look of each curve by its label, and the entries of the legend: name, colour, dashes."""

    looks: dict[str, CurveStyle]
    legend: list[tuple[str, str, str]]

    @property
    def panels(self) -> dict[str, dict[str, CurveStyle]]:
        """The looks of the curves in each panel; without panels, of all under an empty name."""
        made: dict[str, dict[str, CurveStyle]] = {}
        for label, look in self.looks.items():
            made.setdefault(look.panel, {})[label] = look
        return made


class _Words(NamedTuple):
    """What of a label a panel stands for, what a colour, and what dashes."""

    panel: str
    color: str
    dashes: str = ""


# From the words in which labels differ, the simplest first.
_WAYS: tuple[Callable[[Sequence[str]], _Words], ...] = (
    lambda words: _Words("", _joined(words[:1]), _joined(words[1:])),
    lambda words: _Words("", _joined(words[1:]), _joined(words[:1])),
    lambda words: _Words(_joined(words[:1]), _joined(words[1:2]), _joined(words[2:])),
    lambda words: _Words(_joined(words[:1]), _joined(words[2:]), _joined(words[1:2])),
    lambda words: _Words(_joined(words[1:2]), _joined(words[:1]), _joined(words[2:])),
    lambda words: _Words(_joined(words[:1]), _joined(words[1:])),
    lambda words: _Words("", _joined(words)),
)


def arranged(labels: Sequence[str]) -> Arrangement | None:
    """Looks that tell these curves apart at a glance; None if there are too many for that.

    A few curves have a colour each. Of more, colours stand for one setting and dashes for another,
    such as `batch 8` and `compiled`, and if need be panels for a third, such as `gpt2-small`.
    """
    if len(labels) <= len(COLORS):
        return in_turn(labels)
    words = {label: label.split(", ") for label in labels}
    shared = [word for word in words[labels[0]] if all(word in own for own in words.values())]
    for way in _WAYS:
        parts = {
            label: way([word for word in own if word not in shared]) for label, own in words.items()
        }
        if _readable(list(parts.values())):
            return _by_words(parts, common=_joined(shared))
    return None


def in_turn(labels: Sequence[str]) -> Arrangement:
    """A colour for each curve in one panel, with other dashes in each round of the colours."""
    return _by_words({label: _Words("", label) for label in labels})


def _readable(parts: Sequence[_Words]) -> bool:
    panels, colors, dashes = zip(*parts, strict=True)
    names, several = len(set(colors)), len(set(dashes)) > 1
    return (
        len(set(panels)) <= MOST_PANELS
        and names <= (len(COLORS) if several else MOST_ENTRIES)
        and len(set(dashes)) <= len(DASHES)
        and max(map(panels.count, panels)) <= (MOST_IN_PANEL if several else MOST_ENTRIES)
    )


def _by_words(parts: Mapping[str, _Words], *, common: str = "") -> Arrangement:
    """Looks by the words of each label; `common` ones name a colour that has none of its own."""
    names = dict.fromkeys(words.color for words in parts.values())
    lines = {
        name: (COLORS[nth % len(COLORS)], DASHES[nth // len(COLORS) % len(DASHES)])
        for nth, name in enumerate(names)
    }
    # A setting at its default has no words, and solid lines.
    kinds = sorted(dict.fromkeys(words.dashes for words in parts.values()), key=bool)
    dashes = dict(zip(kinds, DASHES, strict=False)) if len(kinds) > 1 else {}
    looks = {}
    for label, words in parts.items():
        color, line = lines[words.color]
        looks[label] = CurveStyle(words.panel, color, dashes.get(words.dashes, line))
    legend = [(name or common, *line) for name, line in lines.items()]
    return Arrangement(looks, legend + [(kind, IDEAL, dashes[kind]) for kind in dashes if kind])


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words)
