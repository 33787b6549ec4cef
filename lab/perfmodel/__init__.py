"""FLOPs, memory, collectives, hardware, step times, forecasts, the planner."""
