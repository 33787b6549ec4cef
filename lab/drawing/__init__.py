"""What the figures are made of: their data, look, labels and parts."""
