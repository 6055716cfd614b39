"""The bus on Redis or Valkey: one server, or a cluster.

Everything of one namespace lies in one hash slot, so that a script may see all of it.
In a cluster that is one node, which the client library finds, and which is spoken to
directly; messages are sharded there (``SPUBLISH``), and do not go around the cluster.
When the slot moves, the connection counts as lost, and the node is found anew.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.retry import Retry

from hangup.bus.base import HELD_TTL, MARKER_TTL, REPLY_TTL, BusDown, Holder
from hangup.core.guard import guarded
from hangup.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hangup.bus.base import Claim

PATIENCE: Final = 2.0
"""Seconds that a connection or an answer may take."""
_QUIET: Final = 5.0  # seconds without a word after which the other side is asked
_DEAD: Final = 5.0  # more seconds after which it is gone
_SHARDED_SINCE: Final = 7  # Valkey says that it is a Redis 7
_NAMESPACE: Final = "hangup"

_STOP: Final = """
local marker, posted = ARGV[1], redis.call('GET', KEYS[1])
if posted then marker = string.match(posted, '^%S* (.*)$') or marker end
posted = ARGV[4] .. ' ' .. marker
redis.call('SET', KEYS[1], posted, 'EX', ARGV[2])
return redis.call(ARGV[3], KEYS[2], 'stop ' .. posted)
"""

_CLAIM: Final = """
local holders = {}
for i = 2, #KEYS do
  local run, rank = ARGV[2 * i - 1], ARGV[2 * i]
  local held = redis.call('GET', KEYS[i])
  local held_rank, held_run
  if held then held_rank, held_run = string.match(held, '^(%d+) (.*)$') end
  if held_run == run or (held_rank and tonumber(held_rank) >= tonumber(rank)) then
    redis.call('EXPIRE', KEYS[i], ARGV[1])
  else
    held = rank .. ' ' .. run
    redis.call('SET', KEYS[i], held, 'EX', ARGV[1])
    local key = string.match(KEYS[i], '[^:]*$')
    redis.call(ARGV[2], KEYS[1], 'held ' .. key .. ' ' .. held)
  end
  holders[i - 1] = held
end
return holders
"""


# A connection that another thread closes under us is a closed file to its buffer.
_FAULTS: Final = (redis.RedisError, OSError, ValueError)


def _down(error: BaseException) -> BusDown:
    return BusDown(f"{type(error).__name__}: {error}")


@contextmanager
def _reaching() -> Iterator[None]:
    try:
        yield
    except _FAULTS as error:
        raise _down(error) from error


class RedisSubscription:
    """See :class:`hangup.bus.base.Subscription`."""

    def __init__(self, client: redis.Redis, channel: str, *, sharded: bool) -> None:
        untyped: Any = client
        self._pubsub = untyped.pubsub()
        self._heard_at = time.monotonic()
        self._asked_at: float | None = None
        try:
            with _reaching():
                if sharded:
                    self._pubsub.ssubscribe(channel)
                else:
                    self._pubsub.subscribe(channel)
            self._confirm(time.monotonic() + PATIENCE)
        except BaseException:
            self.close()
            raise

    def _confirm(self, until: float) -> None:
        """Wait until the bus says that it heard us."""
        while self._next(PATIENCE) != ("subscribed", ""):
            if time.monotonic() >= until:
                raise BusDown("the subscription was not confirmed")

    def receive(self, timeout: float) -> str | None:
        """Return the next message."""
        kind, text = self._next(timeout)
        if kind == "message":
            return text
        if kind == "gone":
            raise BusDown("the subscription was ended from the other side")
        now = time.monotonic()
        if self._asked_at is None and now - self._heard_at >= _QUIET:
            self._asked_at = now
            with _reaching():
                self._pubsub.ping()
        elif self._asked_at is not None and now - self._asked_at >= _DEAD:
            raise BusDown("the bus does not answer")
        return None

    def _next(self, timeout: float) -> tuple[str, str]:
        try:  # as ``_reaching`` does, without its frames while a run goes on
            message = self._pubsub.get_message(timeout=timeout)
        except _FAULTS as error:
            raise _down(error) from error
        if message is None:
            return "nothing", ""
        self._heard_at, self._asked_at = time.monotonic(), None
        kind = message["type"]
        if kind in ("message", "smessage"):
            return "message", str(message["data"])
        if kind in ("subscribe", "ssubscribe"):
            return "subscribed", ""
        return ("gone", "") if kind in ("unsubscribe", "sunsubscribe") else (kind, "")

    def close(self) -> None:
        """Hear no more."""
        guarded(self._pubsub.close)


class RedisTransport:
    """See :class:`hangup.bus.base.Transport`.

    Args:
        url: As redis-py takes it; also ``valkey:``.
        namespace: Whose keys and messages these are; other namespaces are not seen.
        database: Part of the channel's name: channels know of no databases.
    """

    def __init__(self, url: str, namespace: str, database: str) -> None:
        self._url = url
        self._prefix = f"{{{namespace}}}"
        self._channel = f"{self._prefix}:bus:{database}"
        self._inherited: list[Any] = []
        self._nodes: list[ClusterNode] = []
        self._by_url = True
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._client: redis.Redis | None = None
        self._scripts: dict[str, Any] = {}
        self._around: RedisCluster | None = None
        self._sharded = False

    # Connections

    def _connected(self) -> redis.Redis:
        """Return the client, made at first use and after a fault."""
        client = self._client
        if client is not None:
            return client
        with self._lock, _reaching():
            if self._client is None:
                by_url = self._by_url or not self._nodes
                # What fails one way is tried the other way next: the nodes that were
                # known may be gone, or the one of the URL.
                self._by_url = not by_url
                self._client = self._connect(by_url=by_url)
                self._by_url = not self._nodes
            return self._client

    def _connect(self, *, by_url: bool) -> redis.Redis:
        options: dict[str, Any] = {
            "socket_timeout": PATIENCE,
            "socket_connect_timeout": PATIENCE,
            "decode_responses": True,
            "client_name": "hangup",
            "protocol": 2,
        }
        if not self._url.startswith("unix:"):
            options["socket_keepalive"] = True
        never: Any = Retry(NoBackoff(), 0)
        if by_url:
            client = redis.Redis.from_url(self._url, retry=never, **options)
            try:
                about = client.info("server", "cluster")
            except BaseException:
                client.close()
                raise
            self._sharded = bool(about.get("cluster_enabled"))
            if not self._sharded:
                self._nodes = []
                return client
            client.close()
            version = str(about.get("redis_version", "0"))
            if int(version.split(".", 1)[0]) < _SHARDED_SINCE:
                raise BusDown(f"a cluster of Redis {version} has no sharded messages")
        known = [] if by_url else self._nodes
        around: Any = RedisCluster(
            startup_nodes=list(known), url=self._url, retry=never, **options
        )
        self._around = around
        node_of: Any = ClusterNode
        self._nodes = [node_of(node.host, node.port) for node in around.get_nodes()]
        node = around.get_node_from_key(self._channel)
        if node is None:
            raise BusDown("no node of the cluster has the slot of the bus")
        found: redis.Redis = around.get_redis_connection(node)
        return found

    @contextmanager
    def _asking(self) -> Iterator[redis.Redis]:
        """Give the client; after a fault it is made anew, wherever the bus then is."""
        client = self._connected()
        try:
            with _reaching():
                yield client
        except BusDown:
            self._drop(client)
            raise

    def _drop(self, client: redis.Redis) -> None:
        with self._lock:
            if self._client is not client:
                return
            self._client, around, self._around = None, self._around, None
        guarded(client.close)
        if around is not None:
            guarded(around.close)

    def close(self) -> None:
        """Give back every connection."""
        client = self._client
        if client is not None:
            self._drop(client)

    def after_fork(self) -> None:
        """Forget every connection, and close none: the parent process goes on."""
        self._inherited += [self._client, self._around]
        self._begin_anew()

    # The bus

    def subscribe(self) -> RedisSubscription:
        """Listen from now on."""
        client = self._connected()
        try:
            return RedisSubscription(client, self._channel, sharded=self._sharded)
        except BusDown:
            self._drop(client)
            raise

    def _script(self, client: redis.Redis, text: str) -> Any:
        """Return a script, which is sent by its hash once the server knows it."""
        script = self._scripts.get(text)
        if script is None:
            script = self._scripts[text] = client.register_script(text)
        return script

    @property
    def _publish(self) -> str:
        return "SPUBLISH" if self._sharded else "PUBLISH"

    def _marker(self, run_id: str) -> str:
        return f"{self._prefix}:stop:{run_id}"

    def _reply(self, reply: str) -> str:
        return f"{self._prefix}:reply:{reply}"

    def stop(self, run_id: str, marker: str, reply: str) -> int:
        """Post and publish a stop."""
        with self._asking() as client:
            keys = (self._marker(run_id), self._channel)
            words = (marker, str(MARKER_TTL), self._publish, reply)
            return int(self._script(client, _STOP)(keys, words, client))

    def markers(self, run_ids: Sequence[str]) -> list[str | None]:
        """Return what is posted."""
        with self._asking() as client:
            found: Any = client.mget([self._marker(run_id) for run_id in run_ids])
            return list(found)

    def now(self) -> int:
        """Return the clock of the bus."""
        with self._asking() as client:
            untyped: Any = client
            seconds, micro = untyped.time()
            return int(seconds) * 1_000_000 + int(micro)

    def claim(self, claims: Sequence[Claim]) -> list[Holder]:
        """Settle who is the newest."""
        keys = [f"{self._prefix}:held:{claim.key}" for claim in claims]
        named = [word for one in claims for word in (one.run_id, str(one.rank))]
        with self._asking() as client:
            words = [str(HELD_TTL), self._publish, *named]  # known once connected
            claim = self._script(client, _CLAIM)
            held: Any = claim((self._channel, *keys), words, client)
        parts = [one.partition(" ") for one in held]
        return [Holder(int(rank), run_id) for rank, _, run_id in parts]

    def publish(self, message: str) -> int:
        """Tell everybody who listens."""
        with self._asking() as client:
            untyped: Any = client
            return int(untyped.execute_command(self._publish, self._channel, message))

    def answer(self, reply: str, texts: Sequence[str]) -> None:
        """Leave answers."""
        key = self._reply(reply)
        with self._asking() as client, client.pipeline() as pipeline:
            pipeline.rpush(key, *texts)
            pipeline.expire(key, REPLY_TTL)
            pipeline.execute()

    def next_answer(self, reply: str, timeout: float) -> str | None:
        """Return the next answer."""
        # Shorter than the patience with a connection, longer than 0, which is for ever.
        seconds = min(max(timeout, 0.001), PATIENCE / 2)
        with self._asking() as client:
            found: Any = client.blpop([self._reply(reply)], timeout=seconds)
            return None if found is None else str(found[1])


def connect(url: str) -> RedisTransport:
    """Return what speaks to the bus at ``url``. Connects to nothing yet.

    Raises:
        ConfigError: The library cannot read the URL; does not tell its password.
    """
    base, _, options = url.partition("?")
    query = dict(parse_qsl(options))
    namespace = query.pop("namespace", _NAMESPACE)
    plain = base.replace("valkey", "redis", 1) if base.startswith("valkey") else base
    if query:
        plain += "?" + urlencode(query)
    try:
        read: Any = parse_url
        database = read(plain).get("db", 0)
    except (ValueError, TypeError) as error:
        shown = f"{base.partition(':')[0]}://..."
        raise ConfigError("bus_url", shown, str(error)) from None
    return RedisTransport(plain, namespace, str(database))
