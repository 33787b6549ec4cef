"""Figures of a study, one function each: they draw into matplotlib Axes, and never show or save.

`lab.figures.speedup(study)` takes a Study, its name or folder, a list of records, or StudyResults,
which several figures share. A new one is a function with `@figure` in the module of its kind, named
in that module's `__all__`:

    scaling     step time, throughput, speedup, efficiency by world size
    breakdown   phases of a step, timeline of a step, measured or traced
    curves      losses, overlap of compute and communication, times of collectives
    inference   latency, size, stages
    utilization MFU by micro-batch, memory over a traced step

`figure` registers and titles, `labels` and `style` give the look; what is drawn are StudyResults.
"""

from lab.analysis.results import StudyResults as StudyResults
from lab.figures.breakdown import *  # noqa: F403
from lab.figures.curves import *  # noqa: F403
from lab.figures.figure import FIGURES as FIGURES
from lab.figures.figure import alt_text as alt_text
from lab.figures.inference import *  # noqa: F403
from lab.figures.scaling import *  # noqa: F403
from lab.figures.style import style as style
from lab.figures.utilization import *  # noqa: F403
