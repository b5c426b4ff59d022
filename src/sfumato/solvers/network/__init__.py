"""Private training of dense networks by noisy gradient steps."""
