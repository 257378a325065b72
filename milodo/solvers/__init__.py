"""Numerics of one machine, each written once: they know functions and matrices, and nothing of networks."""
