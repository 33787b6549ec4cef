"""The rules of the audit, by group; each is one small function over observations."""

from lab.analysis.rules.environment import RULES as ENVIRONMENT
from lab.analysis.rules.learning import RULES as LEARNING
from lab.analysis.rules.links import RULES as LINKS
from lab.analysis.rules.phases import RULES as PHASES
from lab.analysis.rules.ranks import RULES as RANKS
from lab.analysis.rules.regularity import RULES as REGULARITY
from lab.analysis.rules.repetition import RULES as REPETITION
from lab.analysis.rules.speedups import RULES as SPEEDUPS
from lab.analysis.rules.work import RULES as WORK

RULES = (*RANKS, *SPEEDUPS, *WORK, *REPETITION, *PHASES, *LINKS, *ENVIRONMENT, *LEARNING, *REGULARITY)
