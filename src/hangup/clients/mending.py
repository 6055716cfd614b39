"""Patches of libraries that may not be imported yet, and perhaps never are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wrapt import register_post_import_hook

from hangup.clients.patch import Patch
from hangup.core.guard import guarded

if TYPE_CHECKING:
    from types import ModuleType

    from hangup.clients.patch import Make

    Wanted = tuple[str, str, str, Make]
    """Module, class, method, and what makes the wrapper."""


class Mending:
    """The patches of one adapter: now of what is imported, of the rest when it is.

    Nothing is imported for it: that can take seconds. A class or a method that a
    version of its library does not have is passed over. Not thread-safe.

    Args:
        wanted: For each patch the module, the class, the method, and what makes the
            wrapper (see :class:`~hangup.clients.patch.Patch`).
    """

    def __init__(self, *wanted: Wanted) -> None:
        self._wanted = wanted
        self._active = False
        self._hooked = False
        self._patches: list[Patch] = []

    def install(self) -> None:
        """Apply what can be applied, and the rest when it can be. Idempotent."""
        self._active = True
        if not self._hooked:
            self._hooked = True
            for module in dict.fromkeys(module for module, *_ in self._wanted):
                register_post_import_hook(self._imported, module)
        for patch in self._patches:
            patch.apply()

    def uninstall(self) -> None:
        """Take it back, also from what is imported later. Idempotent."""
        self._active = False
        for patch in self._patches:
            patch.revert()

    def _imported(self, module: ModuleType) -> None:
        guarded(self._mend, module)

    def _mend(self, module: ModuleType) -> None:
        for name, cls, method, make in self._wanted:
            owner = getattr(module, cls, None) if name == module.__name__ else None
            if owner is None or not hasattr(owner, method):
                continue
            patch = Patch(owner, method, make)
            self._patches.append(patch)
            if self._active:
                patch.apply()
