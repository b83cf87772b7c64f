"""Clients of one network trained together: every layer is computed once for all of them.

A stack of n clients holds activations as (n, C, B, H, W), and vectors as (n, C, B): clients first, then channels, then
samples. In this order a 1×1 convolution of all clients is one batched matrix product without a copy, and their batch
normalisations are one over n·C channels.
"""
