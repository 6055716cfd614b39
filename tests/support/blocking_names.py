"""What the blocking agents and their tests both name."""

MODEL = "gpt-4o-mini"
