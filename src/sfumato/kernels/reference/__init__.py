"""Readable twins of the kernels: slow, and what the kernels are held against."""
