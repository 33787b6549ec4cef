"""Looking ahead: what is expected of runs, frozen before them and scored after them; the fastest plan."""
