"""One job from its start to its end: how it is handed over, watched, ended and told of, on any queue."""
