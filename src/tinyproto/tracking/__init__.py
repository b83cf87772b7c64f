"""The files of a run: the run folder, its records, its checkpoints, its summary."""
