from __future__ import annotations

from pathlib import Path

from bs4 import BeautifulSoup
from factories import run, study

from lab.report.gallery import Entry, _page, _readme, _renamed


def test_a_host_has_one_name_in_all_files_and_places() -> None:
    hosts: dict[str, str] = {}
    record = {
        "environment": {"hosts": ["gpu7.site.edu", "gpu8.site.edu", "gpu7.site.edu"]},
        "allocation": {"nodes": ["gpu7", "gpu8"]},
    }
    renamed = _renamed(record, hosts)
    assert renamed["environment"]["hosts"] == ["node1", "node2", "node1"]
    assert renamed["allocation"]["nodes"] == ["node1", "node2"]
    assert _renamed({"hosts": ["10.0.0.1", "10.0.0.2"]}, {}) == {"hosts": ["node1", "node2"]}
    # In a profile it is a number.
    assert _renamed([{"nodes": 4}, {"hosts": ["gpu9"]}], hosts) == [
        {"nodes": 4},
        {"hosts": ["node3"]},
    ]


def test_links_lead_to_folders_whose_names_have_spaces(tmp_path: Path) -> None:
    made = study(tmp_path / "my study", [run()])
    entry = Entry(
        made, "", "1 of 1", "my study/out/report.html", "my study/out/picture.svg", "a | b"
    )
    picture = tmp_path / "my study" / "out" / "picture.svg"
    picture.parent.mkdir(parents=True)
    picture.write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (link,) = BeautifulSoup(_page([entry], tmp_path), "html.parser").select("h2 a[href^=my]")
    assert link["href"] == "my%20study/out/report.html"
    readme = _readme([entry])
    assert "(my%20study/out/report.html)" in readme
    assert 'src="my%20study/out/picture.svg"' in readme
    assert readme.splitlines()[-1].count("|") == 4
