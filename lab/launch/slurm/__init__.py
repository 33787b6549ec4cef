"""The Slurm executor: job arrays through submitit, and their states, with or without accounting."""
