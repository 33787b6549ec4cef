"""The language of the course's hints and verdicts: that of the catalogue in LAB_CATALOGUE."""

from __future__ import annotations

import functools
import os
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.errors import InputError

if TYPE_CHECKING:
    from babel.messages.catalog import Catalog, Message


def tr(message: str, /, **values: object) -> str:
    """A message in the course's language, with values at its placeholders as in `str.format`.

    `{share:.0%}` gives `36 %`, as in reports. A message without a usable translation stays English.
    Raises InputError if LAB_CATALOGUE names no catalogue.
    """
    return _Sentence().format(_translations(catalogue_in_use()).get(message, message), **values)


class _Sentence(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        text: str = super().format_field(value, format_spec)
        return f"{text[:-1]} %" if format_spec.endswith("%") else text


def catalogue_in_use() -> Path | None:
    """The catalogue that LAB_CATALOGUE names, if any, wherever the working folder is later."""
    name = os.environ.get("LAB_CATALOGUE")
    return Path(name).expanduser().absolute() if name else None


@functools.cache
def _translations(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    return {
        str(message.id): str(message.string)
        for message in read_catalogue(path)
        if is_translated(message) and not fault(message)
    }


def read_catalogue(path: Path) -> Catalog:
    """Read a gettext .po file; raises InputError, which names it, if that is impossible."""
    from babel.messages.pofile import PoFileError, read_po

    try:
        with path.open("rb") as stream:
            return read_po(stream, abort_invalid=True)
    except OSError as error:
        what = error.strerror or str(error)
    except PoFileError as error:
        what = (
            f"not a gettext catalogue; line {error.lineno + 1} cannot be read: {error.line.strip()}"
        )
    except (ValueError, LookupError) as error:
        what = f"not a gettext catalogue: {error}"
    advice = "`lab course catalogue` makes one; LAB_CATALOGUE needs its whole path"
    raise InputError.of(path, "catalogue", what, advice)


def is_translated(message: Message) -> bool:
    """Whether a translator has finished a message; the header of a catalogue is none."""
    return bool(message.id and message.string) and not message.fuzzy


def fault(message: Message) -> str:
    """Why a translation cannot be used: its placeholders are not the original's; empty if it can.

    A placeholder counts with its format, because a value fits no other.
    """
    try:
        wanted, actual = _placeholders(str(message.id)), _placeholders(str(message.string))
    except ValueError as error:
        return f"its braces cannot be read: {error}"
    if wanted == actual:
        return ""
    return f"it has {_listed(actual)}; the original has {_listed(wanted)}"


def _placeholders(text: str) -> set[str]:
    return {
        "{" + name + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "") + "}"
        for _, name, form, conversion in string.Formatter().parse(text)
        if name is not None
    }


def _listed(placeholders: set[str]) -> str:
    return ", ".join(sorted(placeholders)) or "no placeholder"
