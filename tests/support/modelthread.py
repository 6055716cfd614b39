"""The model server on an event loop of its own, for tests that block."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Self

from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from hangup.demo.brain import Script
    from hangup.demo.journal import CallRecord


class ModelThread:
    """A model server in a thread; a context manager.

    Every case asks for a model of its own name, and so knows its calls.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._model = ModelServer()

    @property
    def base_url(self) -> str:
        return self._model.base_url

    def script(self, model: str, *scripts: Script) -> str:
        """Answer calls to ``model`` so; returns its name."""
        self._model.script(model, *scripts)
        return model

    def of(self, model: str) -> list[CallRecord]:
        """The calls to this model so far."""
        return [call for call in self._model.log.calls if call.model == model]

    def wait(self, holds: Callable[[], bool], within: float = 20.0) -> None:
        """Wait until the log says so."""
        self._run(self._model.log.wait_for(holds, within))

    def begun(self, model: str, tokens: int = 5) -> None:
        """Wait until a call to this model has generated so many tokens."""
        self.wait(lambda: sum(call.output_tokens for call in self.of(model)) >= tokens)

    def closed(self, model: str, calls: int = 1) -> None:
        """Wait until so many calls to this model are over."""
        self.wait(lambda: sum(c.closed is not None for c in self.of(model)) >= calls)

    def late(self, model: str, moment: float) -> float:
        """By how many seconds the last call to this model outlived that moment."""
        return max((call.closed or float("inf")) for call in self.of(model)) - moment

    def total(self, model: str) -> int:
        """All tokens of this model."""
        return sum(call.total_tokens for call in self.of(model))

    def since(self, model: str, moment: float) -> int:
        """The output tokens of this model from that moment on."""
        return sum(
            tokens
            for call in self.of(model)
            for at, tokens in call.chunks
            if at >= moment
        )

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._model.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._model.__aexit__(kind, error, trace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
