"""The exporters as nbconvert's command finds them: by their entry points."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook


@pytest.mark.parametrize(("form", "start"), [("html", b"<!DOCTYPE html>"), ("pdf", b"%PDF")])
def test_export_from_the_command_line(form: str, start: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" width="8pt" height="4pt"><rect width="8" '
        'height="4"/></svg>'
    )
    nbformat.write(
        new_notebook(cells=[new_markdown_cell("# T\n\n![Bars](a.svg)\n\n$x$")]),
        tmp_path / "x.ipynb",
    )
    # From another folder: an image is looked for beside the notebook.
    command = [sys.executable, "-m", "nbconvert", "--to", f"lab_{form}", str(tmp_path / "x.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"x.{form}").read_bytes().startswith(start)
