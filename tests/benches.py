"""A bench that is driven without a browser, and what it shows."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import factories

from lab.config.study import Study
from lab.dashboard.board import Dashboard
from lab.records.store import Record, Store, write_record


def choose(dashboard: Dashboard, **values: object) -> Study:
    """Set controls; returns the study of the configuration that is then in the form."""
    for name, value in values.items():
        dashboard.fields[name].value = value
    return dashboard.bench.study(dashboard.asked(), dashboard.fields["cluster"].value)


def keep(dashboard: Dashboard, made: Callable[..., Record] = factories.record, **changes: object) -> Study:
    """Put a record of the configuration in the form where a run would leave it."""
    study = choose(dashboard)
    dashboard.bench.keep(study)
    write_record(made(study.runs[0], **changes), Store(study.out).folder(study.task()))
    return study


def text(widget: object) -> str:
    return re.sub(r"<[^>]+>", " ", widget.value).strip()  # type: ignore[attr-defined]


def content(dashboard: Dashboard) -> str:
    """All results as plain text."""
    return "\n".join(output["data"].get("text/markdown", output["data"]["text/plain"]) for output in dashboard.results.outputs)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.05)
