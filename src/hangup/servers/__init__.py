"""Who is waiting: one adapter per kind of server, each in a file of its own.

An adapter opens a run for a caller, knows whether that caller is still there, and hands
the result or the reason over. Nothing here is imported by ``hangup`` itself: import the
adapter you use, such as :mod:`hangup.servers.asgi`, or let zero code put it around your
application (see `HANGUP_FRAMEWORKS`).
"""
