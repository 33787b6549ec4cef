"""Modules under the names by which users' job scripts call them; `lab/__init__.py` puts this folder on `lab.__path__`."""
