"""How many curves are told apart: by panels, colours and dashes, from the words of their labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lab.figures.style import COLORS, IDEAL

DASHES = ("-", "--", ":", "-.")
MOST_PANELS = 4  # rows of them in a figure
MOST_IN_PANEL = 8  # curves


class Look(NamedTuple):
    """Where and how a curve is drawn."""

    panel: str
    color: str
    dashes: str


class Arrangement(NamedTuple):
    """The look of each curve by its label, and the entries of the legend: name, colour, dashes."""

    looks: dict[str, Look]
    legend: list[tuple[str, str, str]]

    @property
    def panels(self) -> dict[str, dict[str, Look]]:
        """The looks of the curves in each panel; without panels, of all under an empty name."""
        made: dict[str, dict[str, Look]] = {}
        for label, look in self.looks.items():
            made.setdefault(look.panel, {})[label] = look
        return made


class _Keys(NamedTuple):
    """The words of a label that a panel, a colour and dashes stand for."""

    panel: str
    color: str
    dashes: str


# From the words in which labels differ, the simplest first.
_WAYS: tuple[Callable[[Sequence[str]], _Keys], ...] = (
    lambda words: _Keys("", _joined(words[:1]), _joined(words[1:])),
    lambda words: _Keys("", _joined(words[1:]), _joined(words[:1])),
    lambda words: _Keys(_joined(words[:1]), _joined(words[1:2]), _joined(words[2:])),
    lambda words: _Keys(_joined(words[:1]), _joined(words[2:]), _joined(words[1:2])),
)


def arranged(labels: Sequence[str]) -> Arrangement:
    """Looks that tell all these curves apart, of which there are at most 24.

    A few curves have a colour each. Of more, colours stand for one setting and dashes for another,
    such as `batch 8` and `compiled`, and if need be panels for a third, such as `gpt2-small`.
    Labels that no such settings distinguish have a colour and dashes each.
    """
    if len(labels) > len(COLORS):
        words = {label: label.split(", ") for label in labels}
        shared = [word for word in words[labels[0]] if all(word in own for own in words.values())]
        differing = {
            label: [one for one in own if one not in shared] for label, own in words.items()
        }
        for way in _WAYS:
            keys = {label: way(own) for label, own in differing.items()}
            if _readable(list(keys.values())):
                return _by_keys(keys, common=_joined(shared))
    return in_turn(labels)


def in_turn(labels: Sequence[str]) -> Arrangement:
    """A colour for each curve in one panel, and other dashes for each round of the colours."""
    rounds = {label: divmod(nth, len(COLORS)) for nth, label in enumerate(labels)}
    looks = {
        label: Look("", COLORS[nth], DASHES[turn % len(DASHES)])
        for label, (turn, nth) in rounds.items()
    }
    return Arrangement(looks, [(label, look.color, look.dashes) for label, look in looks.items()])


def _readable(keys: Sequence[_Keys]) -> bool:
    panels = [key.panel for key in keys]
    return (
        len(set(panels)) <= MOST_PANELS
        and len({key.color for key in keys}) <= len(COLORS)
        and len({key.dashes for key in keys}) <= len(DASHES)
        and max(map(panels.count, panels)) <= MOST_IN_PANEL
    )


def _by_keys(keys: dict[str, _Keys], *, common: str) -> Arrangement:
    """Looks for these keys; where a key is empty, the words that all labels share name it."""
    colors = dict(zip(dict.fromkeys(key.color for key in keys.values()), COLORS, strict=False))
    # A setting at its default has no words, and solid lines.
    kinds = sorted(dict.fromkeys(key.dashes for key in keys.values()), key=bool)
    dashes = dict(zip(kinds, DASHES, strict=False))
    looks = {
        label: Look(key.panel, colors[key.color], dashes[key.dashes]) for label, key in keys.items()
    }
    legend = [(name or common, color, DASHES[0]) for name, color in colors.items()]
    legend += [(name, IDEAL, line) for name, line in dashes.items() if name]
    return Arrangement(looks, legend)


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words)
