"""Triton kernels over a stack as it lies in memory, (clients, channels, samples, height, width).

They are imported only where there is a GPU; everywhere else, and for what they do not cover, PyTorch computes the same.
None of them waits for another block of its own grid, so that stacks may run beside each other on several streams.
"""
