"""What a person writes: studies, runs, models, data sets, strategies, cluster profiles."""
