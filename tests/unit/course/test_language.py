"""The language of hints and verdicts: what a catalogue holds, what is used of it, and that nothing bypasses it."""

from __future__ import annotations

import ast
import json
import os
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from language import widened
from typer.testing import CliRunner

import lab
from lab import cli
from lab.course.catalogue import HERE, PLACES, messages
from lab.course.check import WrongAnswerError, verdict
from lab.course.language import tr

FRACTION = "Give a fraction, not per cent."
SERIAL = "A serial fraction of {right:.1%} would explain this speedup."
JUDGES = [
    *sorted(HERE.glob("lesson*.py")),
    *(HERE / f"{name}.py" for name in ("check", "ladder", "ranks", "replay")),
]
each_judge = pytest.mark.parametrize("path", JUDGES, ids=lambda path: path.stem)


def translate(path: Path, message: str, translation: str, flag: str = "") -> None:
    """Enter a translation, as an editor of gettext files does."""
    entry = f'msgid "{message}"\nmsgstr "'
    text = path.read_text()
    assert text.count(f'{entry}"') == 1
    path.write_text(text.replace(f'{entry}"', f'{flag}{entry}{translation}"'))


@pytest.fixture
def french(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "fr.po"
    assert lab.update_catalogue(path).translated == 0
    monkeypatch.setenv("LAB_CATALOGUE", str(path))
    return path


def test_a_message_is_english_without_a_catalogue() -> None:
    assert "LAB_CATALOGUE" not in os.environ
    assert tr(SERIAL, right=0.25) == "A serial fraction of 25.0 % would explain this speedup."


def test_a_translation_is_used_with_its_values(french: Path) -> None:
    translate(french, FRACTION, "Une fraction, pas des pour cent.")
    translate(french, SERIAL, "Une fraction série de {right:.1%} suffirait.")
    assert tr(SERIAL, right=0.25) == "Une fraction série de 25.0 % suffirait."
    with pytest.raises(WrongAnswerError, match=r"^04\.karp-flatt: not yet\. Une fraction, pas"):
        verdict("04.karp-flatt", 25, step_s={1: 2.0, 2: 1.25}, ranks=2)
    assert tr("{problems}!", problems="{braces} of a learner") == "{braces} of a learner!"


@pytest.mark.parametrize(
    ("translation", "flag"),
    [
        ("", ""),
        ("Une fraction de {right:.1%}.", "#, fuzzy\n"),
        ("Une fraction.", ""),
        ("Une fraction de {right}.", ""),
        ("Une fraction de {part:.1%}.", ""),
        ("Une fraction de {right:.1%}, {right.real}.", ""),
        ("Une fraction de {right:.1%.", ""),
    ],
)
def test_what_cannot_be_used_of_a_catalogue_stays_english(
    translation: str, flag: str, french: Path
) -> None:
    translate(french, SERIAL, translation, flag)
    assert tr(SERIAL, right=0.25) == "A serial fraction of 25.0 % would explain this speedup."


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"\xff\xfe\x00",
        b"dear student\n",
        b'msgid ""\nmsgstr "Content-Type: text/plain; charset=none\\n"\n\nmsgid "a"\nmsgstr "b"\n',
    ],
)
def test_a_file_that_is_no_catalogue_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "broken.po"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("LAB_CATALOGUE", str(path))
    for asked in (lambda: tr(FRACTION), lambda: lab.grade(tmp_path)):
        with pytest.raises(lab.InputError, match=re.escape(str(path))):
            asked()
    if content is not None:
        with pytest.raises(lab.InputError, match=re.escape(str(path))):
            lab.update_catalogue(path)
        assert path.read_bytes() == content


def test_a_catalogue_that_cannot_be_written_is_unusable_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(lab.InputError, match="file: is not a folder; rename or remove it"):
        lab.update_catalogue(tmp_path / "file" / "fr.po")


def test_an_update_keeps_translations_and_marks_those_of_changed_messages(french: Path) -> None:
    translate(french, FRACTION, "Une fraction.")
    whole = french.read_text()
    assert lab.update_catalogue(french).translated == 1 and french.read_text() == whole
    earlier = whole.replace(f'"{FRACTION}"', '"Give a fraction, no per cent."')
    french.write_text(earlier + '\nmsgid "Gone."\nmsgstr "Parti."\n')
    progress = lab.update_catalogue(french)
    assert (progress.translated, progress.fuzzy) == (0, 1)
    assert tr(FRACTION) == FRACTION
    assert '#~ msgstr "Parti."' in french.read_text()


def test_the_command_names_what_cannot_be_used_with_its_line(french: Path) -> None:
    translate(french, SERIAL, "Une fraction de {part:.1%}.")
    words = ["course", "catalogue", str(french)]
    ended = CliRunner().invoke(cli.app, words)
    count = len({text for text, *_ in messages()})
    assert f"0 of {count} messages" in ended.stdout
    assert isinstance(ended.exception, lab.LabError) and ended.exception.exit_status == 1
    line = french.read_text().splitlines().index(f'msgid "{SERIAL}"') + 1
    what = f"fr.po, line {line}: it has {{part:.1%}}; the original has {{right:.1%}}"
    assert what in str(ended.exception)
    french.write_text(french.read_text().replace("{part:", "{right:"))
    ended = CliRunner().invoke(cli.app, [*words, "--json"])
    assert ended.exit_code == 0 and json.loads(ended.stdout)["translated"] == 1


def test_lessons_come_first_and_in_order() -> None:
    files = list(dict.fromkeys(file for _, file, _ in messages()))
    assert files[: len(JUDGES) - 5] == [path.name for path in JUDGES[:-5]]
    comments = [comment for _, _, comment in messages() if comment]
    assert comments[0] == "the hint of 00.ranks" and "the formula of 08.one-f-one-b" in comments


def test_no_message_holds_markdown_because_each_is_shown_literally() -> None:
    assert not [text for text, *_ in messages() if "`" in text]


def said(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.Call]]:
    """The messages that are passed to functions that translate them, with the calls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PLACES:
            yield from ((message, node) for message in node.args[PLACES[ast.unparse(node.func)] :])


@each_judge
def test_every_message_has_a_value_for_each_placeholder(path: Path) -> None:
    catalogue = {text for text, *_ in messages()}
    for message, call in said(ast.parse(path.read_text())):
        if not isinstance(message, ast.Constant):  # in the catalogue by way of their tables
            assert ast.unparse(message) in {
                "exercise.hint",
                "message",
            }
            continue
        assert message.value in catalogue
        names = {name for _, name, *_ in string.Formatter().parse(message.value) if name}
        given = {keyword.arg for keyword in call.keywords}
        assert given in (names, {None}), message.value


@each_judge
def test_no_sentence_bypasses_the_catalogue(path: Path) -> None:
    """Whatever holds words and blanks is a message, a documentation, or an error of the lab's own."""
    tree = ast.parse(path.read_text())
    errors = {"InputError", "InputError.of", "Problem", "LabError", "ValueError"}
    exempt = {*PLACES, *errors, "Rung", "require_type"}
    allowed: set[int] = set()
    for node in ast.walk(tree):
        documented = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        called = isinstance(node, ast.Call) and ast.unparse(node.func) in exempt
        if documented or called or isinstance(node, ast.Assert):
            allowed |= {id(inner) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            is_sentence = re.search(r"[A-Za-z]", node.value) and re.search(r"\s", node.value)
            assert id(node) in allowed or not is_sentence, (node.lineno, node.value)


def test_grades_are_explained_in_the_language_of_the_class(
    wide_catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = tmp_path / "submitted" / "ada" / "07-memory-and-sharding" / "answers"
    answers.mkdir(parents=True)
    (answers / "07.recomputation.txt").write_text("2.0")
    monkeypatch.chdir(wide_catalogue.parent)
    monkeypatch.setenv("LAB_CATALOGUE", wide_catalogue.name)  # from where it was asked
    reasons = {row.exercise: row.reason for row in lab.grade(tmp_path / "submitted")}
    hint = "Forward and backward together are three parts; one of them comes again."
    assert reasons["07.recomputation"] == f"07.recomputation{widened(f': not yet. {hint}')}"
    assert reasons["07.state"] == widened("no answer was handed in")
    assert reasons["07.zero1"] == f"zero1.py{widened(' was not handed in')}"
