"""Tables of wikis and of AsciiDoc."""

from __future__ import annotations

import pytest
from audits import broken, pasted

from lab.analysis.audit.formats.wiki import as_markdown

MEDIAWIKI = """{| class="wikitable"
|+ Strong scaling
|-
! style="text-align: right"| ranks !! time (s) !! speedup
|-
| style="text-align: right"| 1 || 100.31 || 1.00
|-
| 2 || 52.10 || 1.93
|-
| 4
| 27.40
| 3.66
|}
"""
JIRA = "|| ranks || time (s) || speedup ||\n| 1 | 100.31 | 1.00 |\n| 2 | 52.10 | 1.93 |\n"
JIRA += "| 4 | 27.40 | 3.66 |\n"
MOINMOIN = "||'''ranks'''||'''time (s)'''||'''speedup'''||\n||<style=\"x\">1||100.31||1.00||\n"
MOINMOIN += "||2||52.10||1.93||\n||4||27.40||3.66||\n"
TEXTILE = "|_. ranks |_. time (s) |_. speedup |\n|>. 1 |>. 100.31 |>. 1.00 |\n"
TEXTILE += "|>. 2 |>. 52.10 |>. 1.93 |\n|>. 4 |>. 27.40 |>. 3.66 |\n"
ASCIIDOC = '[cols="3",options="header"]\n|====\n| ranks | time (s) | speedup\n| 1 | 100.31 | 1.00\n'
ASCIIDOC += "| 2 | 52.10 | 1.93\n| 4 | 27.40 | 3.66\n|====\n"
IN_LINES = "|===\n|ranks |time (s) |speedup\n\n|1\n|100.31\n|1.00\n\n|4\n|27.40\n|3.66\n|===\n"


@pytest.mark.parametrize("text", [MEDIAWIKI, JIRA, MOINMOIN, TEXTILE, ASCIIDOC, IN_LINES])
def test_tables(text: str) -> None:
    result = pasted(f"Results\n\n{text}\nThe end.\n")
    assert sorted(result.reading.values()) == ["speedup", "time", "world_size"]
    assert not broken(result)
    assert broken(pasted(text.replace("3.66", "2.66"))) == {"quoted-against-own"}


@pytest.mark.parametrize(
    "text",
    [
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "if (a || b || c)",
        "a | b\n1 | 2",
        "{|\n| 1",
        "|===\n| 1",
        "{|c|c|}",
    ],
)
def test_other_lines_stay(text: str) -> None:
    assert as_markdown(text.splitlines()) == text.splitlines()
