"""Runs studies: local and Slurm executors, the driver of their jobs, outcomes, benchmarks.

`launcher` drives a study's jobs through an `executor` (local or Slurm, both by submitit); `job` is
what each rank runs. Ranks and driver communicate through small JSON files beside the record
(`attempt`), each rank watches its own progress (`watchdog`), and `outcome` writes one record for
every way a job can end: out of memory, a hang, a lost rank, a time limit, a preemption. torchrun
and torch.distributed.elastic are not enough here: they end or restart ranks and leave an error file
on a node, but a study needs a record that names the first cause of every failure, both for local
processes and for Slurm jobs, even if the driver was killed or the scheduler ended the job. The
files are JSON, so nothing that a job leaves is ever unpickled.
"""
