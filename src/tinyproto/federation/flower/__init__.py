"""The adapter to Flower: its two apps, its processes, and the ways between them and the network."""
