"""``hangup`` on the command line: see ``hangup --help``.

The command line needs the extra ``hangup[demo]``; the library does not need the
command line.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

__all__ = ["main"]


_DEMO_NEEDS = (
    "httpx",
    "openai",
    "opentelemetry.instrumentation.genai.openai",
    "opentelemetry.instrumentation.httpx",
    "rich",
    "starlette",
    "uvicorn",
)


def main() -> None:
    """Run the command line; the console script ``hangup``.

    Raises:
        SystemExit: Always, with the exit code: 0, or 2 for a wrong option or a
            missing extra.
    """
    if find_spec("typer") is None:
        sys.exit(say_missing("typer"))
    from hangup.cli.app import app  # noqa: PLC0415  typer may be missing

    app()


def first_absent() -> str | None:
    """Return a module that the demo needs and that is not installed, if any.

    Looks without importing: the demo's own processes import them.
    """
    for name in _DEMO_NEEDS:
        try:
            found = find_spec(name)
        except ModuleNotFoundError:  # not even the package around it
            found = None
        if found is None:
            return name
    return None


def say_missing(module: str, extra: str = "demo") -> int:
    """Say which extra has the module that is missing; return the exit code."""
    sys.stderr.write(
        f"hangup: this command needs {module}, which is not installed.\n"
        f"        pip install 'hangup[{extra}]'\n"
    )
    return 2
