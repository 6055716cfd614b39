"""At SIGTERM the books of a real process are complete, and its callers know why."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from support.servers import ServedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)

TESTS = Path(__file__).parents[1]


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    return tmp_path / "spent.json"


def served(spent: Path, *options: str) -> ServedProcess:
    environment = {**os.environ, "SPENT": str(spent)}
    return ServedProcess("support.dying:app", str(TESTS), environment, options)


def sums(spent: Path, metric: str) -> dict[tuple[str, str, str], float]:
    """By run name, cause and fate or outcome."""
    found: dict[tuple[str, str, str], float] = {}
    rows: list[Any] = json.loads(spent.read_text())
    for name, labels, value in rows:
        if name == metric and value:
            what = labels.get("hangup.fate") or labels["hangup.outcome"]
            key = (labels["hangup.run.name"], labels["hangup.cause"], what)
            found[key] = found.get(key, 0) + value
    return found


def test_the_books_are_complete_although_no_exit_handler_runs(spent: Path) -> None:
    with served(spent) as server:
        answer = httpx.get(f"{server.url}/agent?seconds=0", timeout=10)
        assert answer.text == "answer"
        assert not spent.exists()
        # By the signal itself: so ends uvicorn, and no atexit handler runs.
        assert server.terminate() == -signal.SIGTERM
    assert sums(spent, "hangup.tokens") == {
        ("agent", "none", "delivered"): 10,
        ("job", "shutdown", "sunk"): 10,
    }
    assert sums(spent, "hangup.runs") == {
        ("agent", "none", "delivered"): 1,
        ("job", "shutdown", "abandoned"): 1,
    }


@pytest.mark.parametrize(
    ("seconds", "status", "fate", "cause"),
    [(0.5, 200, "delivered", "none"), (60, 503, "sunk", "shutdown")],
)
def test_requests_are_drained_and_those_that_outlast_it_are_told_to_try_again(
    spent: Path, seconds: float, status: int, fate: str, cause: str
) -> None:
    with (
        served(spent, "--timeout-graceful-shutdown", "2") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        httpx.get(f"{server.url}/agent?seconds=0", timeout=10)
        ask: Callable[..., httpx.Response] = httpx.get
        asking = pool.submit(ask, f"{server.url}/agent?seconds={seconds}", timeout=30)
        with httpx.Client() as probe:  # the request before it has been read by then
            probe.get(f"{server.url}/agent?seconds=0.2", timeout=10)
        server.terminate()
        answer = asking.result()
        assert answer.status_code == status
        if status == 503:
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["hangup-cause"] == "shutdown"
    tokens = sums(spent, "hangup.tokens")
    assert tokens.pop(("job", "shutdown", "sunk")) == 10
    if cause == "none":
        assert tokens == {("agent", "none", "delivered"): 30}
    else:
        assert tokens == {
            ("agent", "none", "delivered"): 20,
            ("agent", cause, fate): 10,
        }
