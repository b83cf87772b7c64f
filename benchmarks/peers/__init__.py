"""tinyproto beside other simulators on the same work: `python -m benchmarks peers`."""
