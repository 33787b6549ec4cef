"""What a run leaves behind: the schema of its record, the store, and tables."""
