"""Federations with all clients on one machine."""
