"""Runs pandoc from its wheel, and says which formulas it could not translate."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lab.errors import LabError


class Converted(NamedTuple):
    """What pandoc wrote, and the formulas that it left as raw TeX, each with its first complaint."""

    text: str
    untranslated: list[tuple[str, str]]


def convert(html: str, *, to: str, options: Sequence[str] = ()) -> Converted:
    """Convert an HTML fragment, with math as `<script type="math/tex">`, to another of pandoc's formats.

    Raises LabError where pandoc fails. pandoc reads no file and no address: it runs in its sandbox.
    """
    import pypandoc

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.json"
        command = [
            pypandoc.get_pandoc_path(),
            "--from=html-auto_identifiers",
            f"--to={to}",
            "--wrap=none",
            "--quiet",
            "--sandbox",
            f"--log={log}",
        ]
        done = subprocess.run([*command, *options], input=html.encode(), capture_output=True, check=False)
        if done.returncode:
            raise LabError(f"pandoc could not convert the page to {to}: {done.stderr.decode(errors='replace').strip()}")
        entries = json.loads(log.read_text("utf-8") or "[]")
    failed = [entry for entry in entries if entry["type"] == "CouldNotConvertTeXMath"]
    return Converted(done.stdout.decode(), [(entry["contents"], _complaint(entry["message"])) for entry in failed])


def _complaint(message: str) -> str:
    lines = (line.strip() for line in message.splitlines())
    return next((line for line in lines if line.startswith("unexpected")), "not understood")
