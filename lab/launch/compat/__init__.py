"""Modules that users' job scripts call as `lab.NAME`: this folder is on `lab.__path__`."""
