"""Variables in profiles: Python and bash make the same of them, and neither runs a command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.config.base import InvalidValueError
from lab.config.cluster import Cluster
from lab.config.slurm import command_for_shell, expand, for_shell
from lab.errors import InputError

VARIABLES = {"HOME": "/home/me", "SCRATCH": "/scratch/a b", "ODD": "$(touch x); `id` \"'*"}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            ["$SCRATCH", "${ODD}", "$$", "~", "/", "`id`", "'", '"', "\\", "*", "; ls"]
        ),
        st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="$~")),
    )
).map("".join)


def by_bash(words: str) -> list[str]:
    shown = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {words}"],
        env=VARIABLES,
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout.split("\0")[:-1]


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
def test_a_shell_and_a_rank_make_the_same_of_a_text(texts: list[str]) -> None:
    usable = []
    for text in texts:
        try:
            usable.append((text, expand(text, VARIABLES)))
        except InvalidValueError as error:
            assert text.startswith("~") or "$" in text, error
    shown = by_bash(" ".join(for_shell(text) for text, _ in usable)) if usable else []
    assert shown == [expanded for _, expanded in usable]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$SCRATCH/cache", "/scratch/a b/cache"),
        ("~", "/home/me"),
        ("~/x:~", "/home/me/x:~"),
        ("${HOME}s$$5", "/home/mes$5"),
        ("$ODD", VARIABLES["ODD"]),  # what a variable holds is not expanded again
        ("", ""),
    ],
)
def test_what_is_expanded(text: str, expanded: str) -> None:
    assert expand(text, VARIABLES) == expanded == by_bash(for_shell(text))[0]


@pytest.mark.parametrize("text", ["$(id)", "$((1+1))", "${A:-x}", "a $", "$1", "~root/x"])
def test_what_would_be_more_than_a_variable_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        for_shell(text)


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(InvalidValueError, match=r"'\$NOWHERE/x': NOWHERE is not set"):
        expand("$NOWHERE/x", VARIABLES)
    ended = subprocess.run(
        ["bash", "-c", f"export A={for_shell('$NOWHERE/x')}; echo reached"],
        env=VARIABLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode and not ended.stdout and "NOWHERE: is not set here" in ended.stderr


def test_a_command_keeps_its_words() -> None:
    command = "apptainer exec --bind $SCRATCH:/data 'my image.sif' ~/python"
    assert by_bash(command_for_shell(command)) == [
        *("apptainer", "exec", "--bind", "/scratch/a b:/data", "my image.sif", "/home/me/python")
    ]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("python: ~/lab/bin/python; id", "more than one program: ';'"),
        ("container: module load a && apptainer exec x", "more than one program: '&&'"),
        ("container: apptainer exec $(id)", "has a $ without a variable's name"),
        ("environment: {A: $(id)}", "environment.A: '$(id)' has a $"),
        ("account: $PROJECT", "account: '$PROJECT': variables are expanded only in environment"),
        ("extra: {comment: $USER}", "extra.comment: '$USER': variables are expanded only in"),
        ("network_interface: ~ib", "network_interface: '~ib': variables are expanded only in"),
    ],
)
def test_profiles_with_variables_that_nothing_expands_are_refused(
    tmp_path: Path, key: str, message: str
) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(f"executor: slurm\ngpus_per_node: 4\n{key}\n")
    with pytest.raises(InputError) as caught:
        Cluster.load(path)
    assert message in str(caught.value)
