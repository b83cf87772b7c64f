"""Clients in several processes with one thread each; the records do not depend on the number of processes."""
