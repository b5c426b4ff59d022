"""The figures and tables of the papers, made again: ``sfumato reproduce``."""
