"""Why a job waits in Slurm's queue: what needs somebody's action, and what passes in time."""

from __future__ import annotations

import pytest

from lab.launch.slurm.controller import JobState


def advice(reason: str) -> str:
    return JobState("7_0", "lab", "PENDING", reason).advice


PASS_IN_TIME = [
    "Priority",
    "Resources",
    "Dependency",
    "BeginTime",
    "JobArrayTaskLimit",
    "Licenses",
    "Reservation",
    "Cleaning",
    "Prolog",
    "QOSMaxJobsPerUserLimit",
    "AssocMaxJobsLimit",
    "AssocGrpJobsLimit",
    "QOSGrpJobsLimit",
    "AssocGrpCPURunMinutesLimit",
    "QOSGrpGRESRunMinutes",
    "AssocGrpBillingRunMinutes",
    "None",
]


@pytest.mark.parametrize("reason", [*PASS_IN_TIME, ""])
def test_what_passes_in_time_needs_no_advice(reason: str) -> None:
    assert advice(reason) == ""


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        ("PartitionTimeLimit QOSMaxWallDurationPerJobLimit AssocMaxWallDurationPerJobLimit", "time_limit_min"),
        ("AssocGrpCPUMinutesLimit QOSGrpGRESMinutes AssocGrpBillingMinutes QOSGrpWallLimit", "is spent"),
        ("QOSMaxCpuMinutesPerJobLimit AssocMaxGRESMinutesPerJob", "device minutes"),
        ("QOSMaxNodePerJobLimit AssocMaxGRESPerJob QOSMaxGRESPerNode PartitionNodeLimit", "lower the world size"),
        ("QOSMinCpuNotSatisfied QOSMinGRES PartitionMinNodes", "raise the world size"),
        ("QOSMaxCpuPerUserLimit QOSMaxGRESPerUser AssocGrpGRES QOSGrpNodeLimit", "more than the limit"),
        ("InvalidAccount AccountNotAllowed", "account"),
        ("InvalidQOS QOSNotAllowed", "qos"),
        ("PartitionDown PartitionInactive", "sinfo -s"),
        ("BadConstraints", "constraint"),
        ("DependencyNeverSatisfied", "extra.dependency"),
        ("JobHeldUser JobHeldAdmin JobHoldMaxRequeue", "scontrol release"),
        ("ReservationDeleted ReservationInvalid", "scontrol show reservation"),
    ],
)  # fmt: skip
def test_what_does_not_pass_says_what_to_do(reasons: str, words: str) -> None:
    for reason in reasons.split():
        assert words in advice(reason), reason


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("launch failed requeued held", "scontrol release"),
        ("ReqNodeNotAvail, May be reserved for other job", "maintenance"),
    ],
)
def test_reasons_of_several_words_are_known(reason: str, words: str) -> None:
    assert words in advice(reason)
