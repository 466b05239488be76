"""Several processes: ranks that share one retrace, workers that share many jobs."""
