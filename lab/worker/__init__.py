"""The worker: what runs on each rank of a job; the only part of the lab that imports torch."""
