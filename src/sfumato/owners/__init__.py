"""Fits between owners who do not trust each other."""
