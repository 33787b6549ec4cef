"""The report: sections of the notebooks, HTML and PDF."""
