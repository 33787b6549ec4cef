"""What is measured while a step runs: clocks, collectives, overlap."""
