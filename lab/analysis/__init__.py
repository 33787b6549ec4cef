"""What records and tables of results say: scaling, causes, findings, the audit; no drawing."""
