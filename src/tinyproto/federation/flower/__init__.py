"""The adapter to Flower: its two apps, its processes, and the gate and relay between them and the network.

Only this package imports flwr; the extra `flower` installs it.
"""

RECORD = "tinyproto"
"""Name of the one record in each Flower message."""
