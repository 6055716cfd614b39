"""What patches libraries when they are imported; see :mod:`hangup.otel.mending`."""

from __future__ import annotations

from hangup.otel.mending import Mending

__all__ = ["Mending"]
