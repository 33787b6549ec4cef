"""Runs studies: local and Slurm executors, the driver of their jobs, outcomes, benchmarks.

`launcher` drives a study's jobs through an `executor` (local or Slurm, both by submitit); `job` is
what each rank runs. Ranks and driver talk through small JSON files beside the record (`attempt`),
each rank watches its own progress (`watchdog`), and `outcome` makes one record of every end: out of
memory, a hang, a lost rank, a time limit, a preemption. torchrun and torch.distributed.elastic do
not serve here: they end or restart ranks and leave an error file on a node, but a study needs a
record of every end that names the first cause, for processes of this machine and jobs of Slurm
alike, also where the driver was killed or the scheduler ended the job. The files are JSON: what a
job leaves is never unpickled.
"""
