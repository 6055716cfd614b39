"""What wraps a method that is not ours; see :mod:`hangup.otel.patch`."""

from __future__ import annotations

from hangup.otel.patch import Make, Patch, patches

__all__ = ["Make", "Patch", "patches"]
