"""Engines: who answers the queries of a fit."""
