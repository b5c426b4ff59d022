"""Kernels for processors, compiled by Numba."""
