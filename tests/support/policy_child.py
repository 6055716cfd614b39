"""A process that continues runs: reads Hangup headers, says the mode each run gets.

Run as a program under ``HANGUP_POLICY_FILE``; a header a line, and a mode a line.
"""

from __future__ import annotations

import sys

import hangup
from hangup.servers._common_terms import Terms


def main() -> None:
    """Serve the lines of standard input, as requests for /child."""
    hangup.instrument()
    terms = Terms()
    for line in sys.stdin:
        fields = [(b"hangup", line.strip().encode())]
        opening = terms.open("http", "POST", "/child", "", fields)
        assert opening is not None
        with opening.run as run:
            run.begin_spending()
            sys.stdout.write(f"{run.id} {run.mode}\n")
            run.deliver()


if __name__ == "__main__":
    main()
