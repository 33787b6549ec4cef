"""Why a job waits in Slurm's queue, where it does not start until somebody does something.

The reasons are those of `squeue` (https://slurm.schedmd.com/job_reason_codes.html).
"""

from __future__ import annotations

import re

QOS = "`sacctmgr show qos`"
ASSOCIATIONS = "`sacctmgr show associations user=$USER`"
RESUBMIT = "then `lab cancel` and run again"

# Patterns of reasons, and what to do; the first that matches counts. All others pass in time, such
# as Priority, Resources, and limits on how many jobs run at once.
_ADVICE = {
    r"MaxWallDuration|(Partition|QOS|Association)TimeLimit": (
        "it requests more time than it may have; lower time_limit_min (`sinfo -o '%P %l'` and "
        f"{QOS} list the limits), {RESUBMIT}"
    ),
    # Limits on minutes of running jobs pass as these end, those on minutes of all time do not.
    r"Grp\w*(?<!Run)Minutes|GrpWall|UsageThreshold": (
        "the budget of its account or QOS is spent; ask whoever manages it, or set another "
        f"account or qos, {RESUBMIT}"
    ),
    r"MinutesPerJob": (
        "it requests more device minutes than one job may have; lower time_limit_min or the world "
        f"size, {RESUBMIT}"
    ),
    r"Max\w+Per(Job|Node|Account)|MaxMemPerLimit|Partition(MaxNodes|NodeLimit)": (
        "it requests more than one job may have; lower the world size or the profile's request, or "
        f"set another partition or qos ({QOS} and `scontrol show partition` list the limits), "
        f"{RESUBMIT}"
    ),
    r"QOSMin|PartitionMinNodes": (
        "it requests less than a job must; set a partition or qos for small jobs, or raise the "
        f"world size, {RESUBMIT}"
    ),
    r"Max\w+PerUser(?!Limit)|Max(Cpu|Node)PerUserLimit|Grp(Cpu|Node|Mem)Limit|Grp(GRES|Billing)$": (
        "it waits for other jobs under the same limit to end; if there are none, it requests more "
        f"than the limit: {QOS} and {ASSOCIATIONS} list it"
    ),
    r"InvalidAccount|AccountNotAllowed|AccountingPolicy": (
        f"set another account ({ASSOCIATIONS} lists yours), {RESUBMIT}"
    ),
    r"InvalidQOS|QOSNotAllowed": f"set another qos ({ASSOCIATIONS} lists yours), {RESUBMIT}",
    r"Partition(Down|Inactive|Config)": (
        "its partition starts no jobs now; wait, or set another (`sinfo -s` lists them), "
        f"{RESUBMIT}"
    ),
    r"BadConstraints": (
        "no node has all that it requests; change constraint, gpu_type or memory "
        f"(`sinfo -o '%N %c %m %f %G'` lists the nodes), {RESUBMIT}"
    ),
    r"DependencyNeverSatisfied": (
        "the job that it waits for ended otherwise than it demands; change extra.dependency, "
        f"{RESUBMIT}"
    ),
    r"JobHeld|JobHoldMaxRequeue|RequeueExitHold|requeued held": (
        "it is held; `scontrol release JOB` lets it start, `lab cancel` ends it"
    ),
    r"Reservation(Deleted|Invalid)|RequiresReservation|ReqResv": (
        f"set a reservation (`scontrol show reservation` lists them), {RESUBMIT}"
    ),
    r"ReqNodeNotAvail": (
        "nodes are down or reserved; before a maintenance only jobs that end in time start, so a "
        "lower time_limit_min may help: `scontrol show reservation` lists them"
    ),
}


def advice(reason: str) -> str:
    """What to do about the reason for which a job waits; "" if it passes in time."""
    return next((text for pattern, text in _ADVICE.items() if re.search(pattern, reason)), "")
