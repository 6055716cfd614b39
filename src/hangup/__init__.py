"""SIGHUP for AI agents."""
