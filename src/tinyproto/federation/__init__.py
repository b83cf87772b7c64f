"""A real federation on Flower: the same algorithms, engine and frames as a simulation, between processes and machines.

Only `client_app.py` and `server_app.py`, Flower's entry points, and `channel.py` know Flower; the extra `flower`
installs it.
"""
