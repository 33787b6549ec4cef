"""What a run leaves: the schema of its record, the store, tables."""
