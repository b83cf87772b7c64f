"""What a run leaves on disk: the run folder, its records, its summary."""
