"""What the cases of Celery have at hand: a broker, workers, a model, and the books."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from redis import Redis as Client
from support.queue_workers import Worker, celery_worker

if TYPE_CHECKING:
    from pathlib import Path

    from support.modelthread import ModelThread
    from support.stores import Redis
    from support.telemetry import Telemetry


class Bench:
    """What the cases have at hand.

    Attributes:
        model: The model; its log is the truth.
        telemetry: What the sending process has booked.
        workers: By the queue they serve.
        redis: A client of the broker.
    """

    def __init__(
        self, place: Path, model: ModelThread, telemetry: Telemetry, redis: Redis
    ) -> None:
        self.place, self.model, self.telemetry = place, model, telemetry
        self.url = f"redis+socket://{redis.socket}"
        self.redis: Any = Client(unix_socket_path=str(redis.socket))
        self.workers: dict[str, Worker] = {}

    def worker(self, queue: str, pool: str = "solo", **environment: str) -> Worker:
        """A worker that serves a queue of its own, not started yet."""
        self.workers[queue] = celery_worker(
            self.place / queue,
            self.url,
            self.model.base_url,
            pool=pool,
            queues=queue,
            environment=environment,
        )
        return self.workers[queue]

    def spent(self, queue: str, model: str, fate: str) -> int:
        """Tokens of a model that the worker of a queue has booked under a fate."""
        books = self.workers[queue].books
        return int(books.total("hangup.tokens", fate=fate, model=model))

    def settled(self, queue: str, model: str, **expected: int) -> None:
        """Wait until the worker has booked just this."""
        until = time.monotonic() + 15
        while True:
            found = {
                fate: tokens
                for fate in ("delivered", "sunk", "wasted", "after")
                if (tokens := self.spent(queue, model, fate))
            }
            if found == expected or time.monotonic() > until:
                break
            time.sleep(0.05)
        assert found == expected
