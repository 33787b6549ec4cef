"""Rules about the surroundings of a study: one machine, one code, one set of versions; what was real and what emulated."""

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
# How tables say that nothing was emulated.
REAL = {"", "no", "none", "nothing", "false", "0", "nan"}


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


def emulated(seen: Observations) -> Iterator[Finding]:
    """Emulated results among measured ones, or of several emulations; and where all are emulated, that they are."""
    rows = seen.frame[seen.frame["aggregate"]] if seen.kind == "records" else seen.frame
    kinds = rows["emulated"].map(lambda cell: "" if cell is None or str(cell).strip().lower() in REAL else str(cell))
    named = ", ".join(repr(kind) for kind in list(dict.fromkeys(kind for kind in kinds if kind))[:4])
    unreal = rows[kinds != ""]
    if 0 < len(unreal) < len(rows):
        evidence = f"{len(unreal)} of {len(rows)} results are emulated ({named}), the others are measured."
        advice = "Never compute or draw one from the other: keep emulated results in a study of their own."
        yield found("emulated", "error", unreal["label"], evidence, advice)
    elif kinds.nunique() > 1:
        evidence = f"The results are of {kinds.nunique()} different emulations: {named}."
        yield found("emulated", "warning", rows["label"], evidence, "Keep a study for each, and set them side by side.")
    elif len(unreal):
        evidence = f"All {len(rows)} results are emulated: {named}."
        yield found("emulated", "note", unreal["label"], evidence, "Say so wherever one of their numbers is shown.")


RULES = (
    Rule("mixed-environment", (("host", *SAME),), mixed_environment),
    Rule("emulated", (("emulated",),), emulated),
)
