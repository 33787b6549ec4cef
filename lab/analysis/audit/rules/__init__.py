"""The rules of the audit, by group; each is one small function over observations."""

from lab.analysis.audit.rules.environment import ENVIRONMENT_RULES as ENVIRONMENT
from lab.analysis.audit.rules.environment import LEARNING_RULES as LEARNING
from lab.analysis.audit.rules.links import LINKS_RULES as LINKS
from lab.analysis.audit.rules.repeats import REGULARITY_RULES as REGULARITY
from lab.analysis.audit.rules.repeats import REPETITION_RULES as REPETITION
from lab.analysis.audit.rules.speedup import SPEEDUPS_RULES as SPEEDUPS
from lab.analysis.audit.rules.speedup import WORK_RULES as WORK
from lab.analysis.audit.rules.timing import PHASES_RULES as PHASES
from lab.analysis.audit.rules.timing import RANKS_RULES as RANKS

RULES = (
    *RANKS,
    *SPEEDUPS,
    *WORK,
    *REPETITION,
    *PHASES,
    *LINKS,
    *ENVIRONMENT,
    *LEARNING,
    *REGULARITY,
)
