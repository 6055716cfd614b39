"""A configuration of gunicorn with the hook of hangup."""

from __future__ import annotations

from hangup.servers.wsgi import worker_int

__all__ = ["worker_int"]
