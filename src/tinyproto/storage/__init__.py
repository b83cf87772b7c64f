"""State on disk: tensor files that detect damage, the states of clients, and checkpoints made of both."""
