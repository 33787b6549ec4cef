"""Generating text from a study that kept no model: what to do about it."""

from __future__ import annotations

import pytest
from factories import record
from studies import StudyMaker

import lab
from lab.errors import InputError
from lab.records.store import Store, write_record


def test_a_study_without_a_model_is_told_how_to_keep_one_or_which_form_is_measured(
    make_study: StudyMaker,
) -> None:
    folder = make_study(repeats=1, quick={"base": {"seed": 7}})
    with pytest.raises(InputError, match=rf"`lab run \S*{folder.name} --fresh`"):
        lab.generate(folder, prompts=["def "])
    study = lab.Study.load(folder, quick=True)
    write_record(record(study.runs[0]), Store(study.out).folder(study.tasks[0]))
    with pytest.raises(InputError, match="its quick form is measured: add --quick"):
        lab.generate(folder, prompts=["def "])
    with pytest.raises(InputError, match="set `keep_model: true` below `base`"):
        lab.generate(study, prompts=["def "])
