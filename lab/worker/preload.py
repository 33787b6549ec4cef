"""Imported first by a server whose forks compute: torch, with its garbage frozen.

Otherwise collections take a quarter of the import, and in every fork copy the pages they walk over.
"""

from importlib import import_module

from lab.machine import loading

with loading():
    import_module("torch._dynamo")  # which every optimizer needs
