"""One round, used unchanged by the simulator and by a real federation."""
