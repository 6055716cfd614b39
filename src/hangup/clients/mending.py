"""Patches of libraries, by the name that client adapters know them by."""

from __future__ import annotations

from hangup.otel.mending import Mending

__all__ = ["Mending"]
