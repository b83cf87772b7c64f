"""A real federation over the network: the same algorithms, engine and wire, carried by Flower (extra `flower`)."""
