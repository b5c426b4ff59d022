"""A local page on which somebody makes a private fit without writing code: ``sfumato page``."""
