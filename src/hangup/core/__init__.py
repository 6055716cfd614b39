"""The cancel tree: clock, deadline, cause, token, run, scope. Standard library only."""
