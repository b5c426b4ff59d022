"""Fits of values that have passed a channel: by the likelihood of what came out of it."""
