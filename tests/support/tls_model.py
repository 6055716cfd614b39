"""The demo's model behind TLS, over HTTP/1.1 or HTTP/2, in a process of its own.

``TlsModel`` is the parent's side, ``Client`` talks to it; run as a module this is the
child. The socket listens
before the process exists, so that no client comes too early.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import trustme
from hypercorn.asyncio import serve
from hypercorn.config import Config
from support.servers import listening

from hangup.demo.brain import Script
from hangup.demo.model_server import ModelServer

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_PATIENCE = 10.0
PATH = "/v1/chat/completions"
ASK: Any = {
    "model": "gpt-4o-mini",
    "messages": [{"role": "user", "content": "Well?"}],
}


class TlsModel:
    """A model behind TLS; a context manager.

    Args:
        directory: For the certificates.
        protocol: What it speaks: ``h2`` or ``http/1.1``.
        script: How it answers.

    Attributes:
        url: Where it listens.
        authority: The file of the certificate to trust.
    """

    def __init__(self, directory: Path, protocol: str, script: Script) -> None:
        authority, self._chain = trustme.CA(), directory / "chain.pem"
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
            str(self._chain)
        )
        self.authority = str(directory / "authority.pem")
        authority.cert_pem.write_to_path(self.authority)
        self._socket = listening()
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        self._arguments = [
            *(str(self._socket.fileno()), str(self._chain), protocol),
            *(str(script.tokens), str(script.rate), str(script.first_token)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter
            [sys.executable, "-m", __name__, *self._arguments],
            pass_fds=[self._socket.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._socket.close()
        if self._process is not None:
            # What it has open is nobody's any more.
            self._process.kill()
            self._process.wait(_PATIENCE)


class Client:
    """A client of ``httpx`` or ``httpx2`` that speaks HTTP/2 with a model.

    Attributes:
        client: The library's own.
        errors: What its questions failed with.
    """

    def __init__(self, name: str, model: TlsModel) -> None:
        stack = import_module(name)
        self.client = stack.AsyncClient(
            base_url=model.url,
            verify=ssl.create_default_context(cafile=model.authority),
            http2=True,
            timeout=stack.Timeout(20),
        )
        self.errors: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def ask(self, **extensions: Any) -> None:
        """Ask once; what fails is written down."""
        try:
            answer = await self.client.post(PATH, json=ASK, extensions=extensions)
            answer.raise_for_status()
            assert answer.http_version == "HTTP/2"
            assert answer.json()["choices"]
        except Exception as error:
            self.errors.append(repr(error))
            raise

    @property
    def connections(self) -> list[Any]:
        """What its pool has open."""
        found: list[Any] = self.client._transport._pool._connections
        return found


def main(fd: str, chain: str, protocol: str, *script: str) -> None:
    """Serve until killed."""
    config = Config()
    config.bind = [f"fd://{fd}"]
    config.certfile = config.keyfile = chain
    config.alpn_protocols = [protocol]
    config.errorlog = None
    # It would hang up on a connection that has served a thousand requests.
    config.keep_alive_max_requests = 1_000_000
    tokens, rate, first_token = script
    answer = Script(
        tokens=int(tokens), rate=float(rate), first_token=float(first_token)
    )
    app: Any = ModelServer(default=answer).app
    asyncio.run(serve(app, config))


if __name__ == "__main__":
    main(*sys.argv[1:])
