"""What a request to a model says about the call before any answer comes."""

from __future__ import annotations

import json
import re

from hangup.spend.dialects import Provider
from hangup.spend.estimate import input_tokens

_MOST_BYTES = 16 * 1024 * 1024
_MOST_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_GEMINI = re.compile(r"/models/([^/:]+):(?:streamG|g)enerateContent$")
_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/chat/completions$")
_KNOWN_HOSTS = (".openai.com", ".anthropic.com", ".openai.azure.com")


def provider_of(host: str, path: str, body: bytes | None) -> Provider | None:
    """Return the dialect of a request, by the shape of its path; None: no model call.

    ``/chat/completions`` and ``:generateContent`` speak for themselves. ``/messages``
    and ``/responses`` may be anybody's: there the host must be the provider's, or the
    body must name a model and a prompt. The query of ``path`` is ignored.
    """
    path = path.partition("?")[0].rstrip("/")
    if path.endswith("/chat/completions"):
        return Provider.OPENAI_CHAT
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return Provider.GEMINI
    ours = f".{host.partition(':')[0].lower()}".endswith(_KNOWN_HOSTS)
    if path.endswith("/responses") and (ours or _mentions(path, body, b'"input"')):
        return Provider.OPENAI_RESPONSES
    # An Assistants thread also has messages; they are stored, not answered.
    if (
        path.endswith("/messages")
        and "/threads/" not in path
        and (ours or _mentions(path, body, b'"messages"'))
    ):
        return Provider.ANTHROPIC
    return None


def _mentions(path: str, body: bytes | None, prompt: bytes) -> bool:
    if body is None:
        return path.rpartition("/")[0].endswith("/v1")
    return b'"model"' in body and prompt in body


class ModelCall:
    """A request to a model, parsed when it is first asked about. Never raises.

    The body is kept until then: metering must not delay the request by parsing it.

    Args:
        path: The path of the request; it names the model in some dialects.
        body: The request's body; None when it is not known.
    """

    __slots__ = ("_body", "_input", "_model", "_most", "_path")

    def __init__(self, path: str = "", body: bytes | None = None) -> None:
        self._path = path.partition("?")[0].rstrip("/")
        self._body: bytes | None = body if body is not None else b""
        self._model: str | None = None
        self._most: int | None = None
        self._input: int | None = None

    @property
    def model(self) -> str | None:
        """The model that is asked for."""
        self._read()
        return self._model

    @property
    def max_output(self) -> int | None:
        """The most output tokens it allows, over all choices; None: no limit given."""
        self._read()
        return self._most

    @property
    def input_estimate(self) -> int | None:
        """Input tokens, estimated from the texts; None when there is nothing to see."""
        self._read()
        return self._input

    def _read(self) -> None:
        body, self._body = self._body, None
        if body is None:
            return
        found = _GEMINI.search(self._path) or _DEPLOYMENT.search(self._path)
        if found is not None:
            self._model = found[1]
        request = parse(body) if 0 < len(body) <= _MOST_BYTES else None
        if request is None:
            return
        model = request.get("model")
        if isinstance(model, str) and model:
            self._model = model
        self._most = _max_output(request)
        self._input = input_tokens(request)


def _max_output(request: dict[str, object]) -> int | None:
    config = request.get("generationConfig") or request.get("generation_config")
    config = config if isinstance(config, dict) else {}
    limits = [request.get(key) for key in _MOST_KEYS]
    limits += [config.get("maxOutputTokens"), config.get("max_output_tokens")]
    choices = request.get("n") or config.get("candidateCount") or 1
    for limit in limits:
        if type(limit) is int and limit >= 0:
            return limit * (choices if type(choices) is int and choices > 0 else 1)
    return None


def parse(data: bytes) -> dict[str, object] | None:
    """Parse a JSON object; None for anything else. Never raises."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
