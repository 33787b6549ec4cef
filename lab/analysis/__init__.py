"""Pure maths over records: no torch, no files, no drawing."""
