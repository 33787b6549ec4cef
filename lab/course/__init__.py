"""The course: judges of the exercises, one module per lesson, and the release for students."""

from lab.course.check import check
from lab.course.lesson02_collectives import Ring

__all__ = ["Ring", "check"]
