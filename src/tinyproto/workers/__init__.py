"""Clients in several processes with one thread each; the records come out the same, whatever their number."""
