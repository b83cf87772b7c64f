"""Triton kernels over a stack as it lies in memory, (clients, channels, samples, height, width), and for the server's fit.

They are imported only on a GPU. Elsewhere, and for shapes they do not cover, PyTorch computes the same. No kernel waits
for another block of its grid, so stacks may run at the same time on several streams.
"""
