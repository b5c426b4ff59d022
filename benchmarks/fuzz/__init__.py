"""Damaged files, foreign folders, impossible settings: no crash, no hang, no traceback."""
