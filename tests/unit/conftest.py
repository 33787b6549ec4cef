"""Every process of the unit tests computes with one thread."""

from __future__ import annotations

import os

# Set before numpy is imported: on cores that tests share, threads that wait for each other only spin.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
