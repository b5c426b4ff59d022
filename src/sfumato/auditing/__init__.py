"""Attacks on what a private fit promises: lower bounds on the real epsilon."""
