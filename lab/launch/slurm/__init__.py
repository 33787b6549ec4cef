"""Slurm as a queue: arrays of jobs through submitit, and how they stand, with or without accounting."""
