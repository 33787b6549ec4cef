"""User scripts, which run unchanged while their steps are measured."""
