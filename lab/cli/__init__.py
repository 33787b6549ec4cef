"""The `lab` command: each verb calls one function of the public API and prints its answer."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

import typer
from rich.console import Console

from lab.cli import ahead, machine, results, studies
from lab.cli.command import UsageError, app
from lab.errors import LabError

__all__ = ["ahead", "app", "machine", "main", "results", "studies"]


def _keep_traceback() -> Path:
    handle, name = tempfile.mkstemp(prefix="lab-traceback-", suffix=".txt", text=True)
    with os.fdopen(handle, "w") as stream:
        stream.write(traceback.format_exc())
    return Path(name)


def main() -> None:
    """Run the command; exit status 0 done, 1 something failed, 2 unusable input; never a traceback."""
    errors = Console(stderr=True)
    try:
        status = app(standalone_mode=False) or 0
    except LabError as error:
        errors.print(f"lab: {error}", highlight=False, markup=False, soft_wrap=True)
        status = error.exit_status
    except UsageError as error:
        errors.print(f"lab: {error.format_message()} See `lab --help`.", highlight=False, markup=False, soft_wrap=True)
        status = 2
    except (KeyboardInterrupt, typer.Abort):
        errors.print("lab: interrupted; the same command goes on from there")
        status = 1
    except BrokenPipeError:
        status = 1
    except Exception as error:  # noqa: BLE001 a user is told, and the traceback is kept for whoever mends it
        errors.print(
            f"lab: a fault of the lab itself: {type(error).__name__}: {error}\nlab: traceback in {_keep_traceback()}",
            soft_wrap=True,
        )
        status = 1
    sys.exit(status if isinstance(status, int) else 0)
