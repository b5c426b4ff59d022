"""Holders of data, and the orders of entries that solvers walk over."""
