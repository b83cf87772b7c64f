"""Files that hold state: sealed tensor files, the states of clients, checkpoints."""
