"""Rule about the surroundings of a study: one machine, one code, one set of versions."""

from __future__ import annotations

from collections.abc import Iterator

from lab.analysis.observations import Observations
from lab.analysis.rule import Finding, Rule, found
from lab.records import FOREIGN_CPU

# What must not differ inside one study, in the words of a sentence.
SAME = {
    "gpu": "GPU models",
    "cpu": "CPU models",
    "version": "versions",
    "commit": "commits",
    "threads": "threads per rank",
    "driver": "drivers",
    "clock": "clocks",
    "data_sha256": "data sets",
    "cluster": "clusters",
}


def mixed_environment(seen: Observations) -> Iterator[Finding]:
    """Hosts, code, versions, threads or clocks that differ inside one study."""
    rows = seen.frame[seen.frame["aggregate"]] if seen.kind == "records" else seen.frame
    unlike = False
    for name, words in SAME.items():
        if name not in rows:
            continue
        # A data set that is a key of the study is asked for; what differs within a configuration is not.
        values = rows[name].dropna().astype(str)
        if values.nunique() > 1 and not (name == "data_sha256" and _follows(seen, name)):
            unlike = True
            named = ", ".join(repr(value) for value in list(dict.fromkeys(values))[:4])
            rare = rows.loc[values.index[values != values.mode().iloc[0]], "label"]
            evidence = f"{values.nunique()} different {words} were used: {named}."
            yield found(
                "mixed-environment", "warning", rare, evidence, "Compare only runs of one environment, or run the others again."
            )
    yield from _hosts(seen, unlike=unlike)
    if "dirty" in rows and rows["dirty"].eq(True).any():
        dirty = rows[rows["dirty"].eq(True)]
        evidence = f"{len(dirty)} of {len(rows)} repeats ran code with changes that no commit holds."
        yield found("mixed-environment", "note", dirty["label"], evidence, "Commit before measuring.")
    if "foreign_cpu" in rows and (rows["foreign_cpu"] > FOREIGN_CPU).any():
        disturbed = rows[rows["foreign_cpu"] > FOREIGN_CPU]
        evidence = f"In {len(disturbed)} of {len(rows)} repeats other processes took up to {disturbed['foreign_cpu'].max():.2f} of the ranks' cores."
        yield found("mixed-environment", "note", disturbed["label"], evidence, "Measure again on an idle machine.")


def _follows(seen: Observations, name: str) -> bool:
    """Whether each configuration has one value, so that the study varies it on purpose."""
    data = [key for key in seen.keys if key in {"key:data", "key:dataset"}]
    return bool(data) and bool((seen.frame.groupby(data)[name].nunique() <= 1).all())


def _hosts(seen: Observations, *, unlike: bool) -> Iterator[Finding]:
    rows = seen.frame[seen.frame["host"].notna()]
    single = rows[rows["nodes"].isna() | (rows["nodes"] == 1)]
    # Ranks of one run may lie on many hosts; runs of one node each should share theirs.
    runs = single.groupby([single["world_size"], single["repeat"].fillna("")], sort=False)["host"]
    different = {frozenset(hosts) for _, hosts in runs}
    if len(different) > 1:
        named = ", ".join(sorted({host for hosts in different for host in hosts})[:4])
        severity = "warning" if seen.kind != "records" or unlike else "note"
        evidence = f"The runs of this study were on {len(different)} different sets of hosts: {named}."
        advice = "Equal models of machines differ too: pin the study to one host, or repeat the baseline on each."
        yield found("mixed-environment", severity, single["label"], evidence, advice)  # type: ignore[arg-type]


RULES = (Rule("mixed-environment", (("host", *SAME),), mixed_environment),)
