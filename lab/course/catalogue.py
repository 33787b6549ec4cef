"""`lab course catalogue`: all hints and verdicts of the course's checks, in a file to translate."""

from __future__ import annotations

import ast
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from babel import Locale
from babel.localedata import locale_identifiers
from babel.messages.catalog import Catalog
from babel.messages.pofile import write_po

from lab.course.check import exercises
from lab.course.ladder import RUNGS
from lab.course.language import fault, is_translated, read_catalogue
from lab.errors import InputError, Problem, path_of
from lab.files import unwritable, write_atomically

HERE = Path(__file__).parent
PLACES = {"tr": 0, "require": 1}  # of messages among the arguments of these functions


@dataclass(frozen=True)
class Progress:
    """The state of a catalogue: `faults` are translations that cannot be used, by their line."""

    messages: int
    translated: int
    fuzzy: int
    faults: tuple[Problem, ...]


def update_catalogue(path: str | Path) -> Progress:
    """Write all messages to a gettext .po file; an existing one keeps its translations.

    The translation of a message that has changed is marked as fuzzy, and not used until a
    translator has removed the mark. Raises InputError for a file that is not a catalogue, and for a
    folder that cannot be written to.
    """
    path = path_of(path, "path", "the path of a .po file")
    if problems := unwritable(path.parent):
        raise InputError("catalogue", problems)
    locale = Locale.negotiate([path.stem], locale_identifiers())
    catalogue = whole = Catalog(locale, project="Scaling Lab", version="course", fuzzy=False)
    for text, file, comment in messages():
        whole.add(text, locations=[(file, 0)], auto_comments=[comment] if comment else [])
    if path.exists():
        catalogue = read_catalogue(path)
        catalogue.update(whole, update_creation_date=False)
        catalogue.charset = "utf-8"  # whatever it was: it holds every letter
    with io.BytesIO() as stream:
        write_po(stream, catalogue, include_lineno=False, include_previous=True)
        write_atomically(path, stream.getvalue())
    return _progress(path)


@cache
def messages() -> tuple[tuple[str, str, str], ...]:
    """Each message, the file that shows it, and a comment; in the order of the lessons."""
    shown: list[tuple[str, str, str]] = []
    lessons = sorted(HERE.glob("lesson*.py"))
    for path in [*lessons, *sorted(set(HERE.glob("*.py")) - set(lessons))]:
        by_line = [(line, text, "") for line, text in _called(path)]
        for name, (hint, judge) in exercises().items():
            if Path(judge.__code__.co_filename) == path:
                by_line.append((judge.__code__.co_firstlineno, hint, f"the hint of {name}"))
        for _, text, comment in sorted(by_line):
            shown.append((text, path.name, comment))
        if path.stem == "ladder":
            for name, rung in RUNGS.items():
                comment = f"a question of {name}"
                shown += [(question, path.name, comment) for question in rung.questions]
                shown.append((rung.formula, path.name, f"the formula of {name}"))
    return tuple(shown)


def _called(path: Path) -> Iterator[tuple[int, str]]:
    """The messages that a file passes to `tr`, or to `require`, which passes them on."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            match node.args[PLACES.get(ast.unparse(node.func), len(node.args)) :]:
                case [ast.Constant(value=str(text)), *_]:
                    yield node.lineno, text


def _progress(path: Path) -> Progress:
    """The state of a catalogue as it is on disk, whose lines a translator sees."""
    written = [message for message in read_catalogue(path) if message.id]
    translated = [message for message in written if is_translated(message)]
    faults = {message.lineno: fault(message) for message in translated}
    problems = tuple(
        Problem(f"{path}, line {line}", why, "use the original's placeholders as they are")
        for line, why in faults.items()
        if why
    )
    fuzzy = sum(message.fuzzy for message in written)
    return Progress(len(written), len(translated) - len(problems), fuzzy, problems)
