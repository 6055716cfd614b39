"""The wrapping of methods, by the name that client adapters know it by."""

from __future__ import annotations

from hangup.otel.patch import Make, Patch, patches

__all__ = ["Make", "Patch", "patches"]
