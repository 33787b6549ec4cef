from __future__ import annotations

import pytest
from factories import environment


@pytest.mark.parametrize(
    ("foreign", "ranks", "fields", "share"),
    [
        (0.12, 1, {}, 0.12),
        (0.12, 64, {}, 0.12 / 64),
        (0.5, 2, {"cpus_granted": [[0, 1], [0, 1]]}, 0.25),  # two ranks share two cores
        (0.5, 2, {"cpus_granted": [[0], [0]], "hosts": ["a", "b"]}, 0.25),  # one core on each host
        (0.5, 2, {"hosts": ["a"]}, 0.25),  # one host stands for both ranks
        (None, 2, {}, None),
        (0.5, 2, {"cpus_granted": []}, None),
        (0.5, 4, {"hosts": ["a", "b"]}, None),  # nobody knows whose cores these are
    ],
)
def test_foreign_load_is_a_share_of_the_cores_of_all_ranks(foreign, ranks, fields, share) -> None:
    place = environment(ranks, foreign_cpu=foreign, **fields)
    assert place.foreign_share == (share if share is None else pytest.approx(share))
    assert place.disturbed == (share is not None and share > 0.06)
