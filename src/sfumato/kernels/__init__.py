"""Compiled code, and its readable twins."""
