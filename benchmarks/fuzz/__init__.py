"""Damaged files, foreign folders and impossible settings: nothing may crash, hang or end in a traceback."""
