"""The response of a WSGI application, as the server reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hangup.servers._wsgi_exchange import Exchange


class Body:
    """Reads the application's iterable for the server, one chunk for one.

    Args:
        exchange: Whose response it is.
        result: What the application returned.
    """

    def __init__(self, exchange: Exchange, result: Iterable[bytes]) -> None:
        self._exchange = exchange
        self._result = result
        self._iterator: Iterator[bytes] | None = None
        self._ended = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        exchange = self._exchange
        try:
            if self._iterator is None:
                self._iterator = exchange.inside(iter, self._result)
            return exchange.next_chunk(self._iterator)
        except BaseException:
            self._ended = True
            raise

    def close(self) -> None:
        """Close the application's response; the server calls it, however it ended."""
        iterator = None if self._ended else self._iterator
        self._ended = True
        self._exchange.closed(iterator)


class SizedBody(Body):
    """One whose number of chunks is known: servers make a Content-Length of one."""

    def __len__(self) -> int:
        return len(self._result)  # type: ignore[arg-type]  # made for those that have it
