"""Measurements of this machine: each gives numbers with the hardware and the versions they were taken on."""
