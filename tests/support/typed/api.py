"""What people write: checked by mypy and by pyright, and never run."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import hangup
from hangup.servers.asgi import HangupMiddleware

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


@hangup.run(budget=30, name="research")
async def research(question: str) -> int:
    """Keep the signature of what is decorated."""
    return len(question)


@hangup.run()
def summarise(text: str) -> str:
    """Likewise, of a plain function."""
    return text


async def charge(card: str, *, cents: int) -> bool:
    """Do something that must not be done by halves."""
    return cents > 0 and bool(card)


def word(text: str) -> str:
    """Work that blocks."""
    return text


async def serve(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Be an ASGI application."""


async def main() -> None:
    """Use each name once."""
    async with hangup.run(budget=30, name="research", tenant="acme") as run:
        assert_type(run, hangup.Run)
        assert_type(run.remaining(), float)
        run.check(needs=2.0)
        assert_type(run.cancel("killed", "by operator"), bool)
        assert_type(await research("why"), int)
        assert_type(summarise("why"), str)
        assert_type(await hangup.gather(research("a"), research("b")), list[int])
        assert_type(await hangup.irreversible(charge, "card", cents=3), bool)
        assert_type(await hangup.to_thread(word, "w"), str)
        async with hangup.cleanup(budget=5):
            pass
        with hangup.detached():
            pass
    with hangup.run() as inner:
        inner.deliver()
    assert_type(hangup.current_run(), hangup.Run | None)
    assert_type(hangup.remaining(), float)
    try:
        hangup.check()
    except hangup.DeadlineExceeded as error:
        assert_type(error.cause, str)
    except hangup.RunAbandoned as error:
        assert_type(error.elapsed, float)
    HangupMiddleware(serve, budget=30)
