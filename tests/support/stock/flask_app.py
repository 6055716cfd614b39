"""A stock agent on Flask, started with ``opentelemetry-instrument gunicorn``."""

from __future__ import annotations

import os

from flask import Flask
from openai import OpenAI

from hangup.servers.wsgi import HangupMiddleware

app = Flask(__name__)
app.wsgi_app = HangupMiddleware(app.wsgi_app)  # type: ignore[method-assign]


@app.get("/ask")
def ask() -> str:
    client = OpenAI(api_key="x", base_url=os.environ["MODEL_URL"] + "/v1")
    completion = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": "Well?"}]
    )
    return completion.choices[0].message.content or ""
