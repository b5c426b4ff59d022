"""Solvers: how a model is fitted. Those that can be asked for by name are listed in ``registry.py``."""
