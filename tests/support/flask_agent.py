"""The blocking agent, in Flask."""

from __future__ import annotations

import asyncio
from typing import Any

from flask import Flask, Response, jsonify
from support import blocking

from hangup.servers.wsgi import HangupMiddleware

flask = Flask("agent")


@flask.get("/<any(agent, late, kept):kind>/json")
def whole(kind: str) -> Any:
    """Answer when the whole of the model's answer has come."""
    return jsonify(text="".join(blocking.pieces()))


@flask.get("/<any(agent, late, kept):kind>/stream")
def stream(kind: str) -> Response:
    """Hand on what the model says as it comes."""
    return Response(blocking.pieces(), mimetype="text/plain")


@flask.get("/<any(agent, late, kept):kind>/stubborn")
def stubborn(kind: str) -> Any:
    """Wait for a model in a way that cannot be stopped, then ask it again."""
    return jsonify(text=[blocking.whole(), blocking.whole()])


@flask.get("/<any(agent, late, kept):kind>/async")
async def asynchronous(kind: str) -> Any:
    """The same in a view that Flask runs in a loop of its own."""
    return jsonify(text=await blocking.gathered())


@flask.get("/<any(agent, late, kept):kind>/run")
def run(kind: str) -> Any:
    """The same in a loop that the view runs, as ``run_sync`` of a framework does."""
    return jsonify(text=asyncio.run(blocking.gathered()))


@flask.get("/books")
def books() -> Any:
    """What hangup has counted."""
    return jsonify(blocking.books())


app = HangupMiddleware(flask, routes=blocking.ROUTES)
