"""``hangup demo``: what users who walk away cost, and what enforcing saves.

Map::

    seeds, brain, prose        the model: how it answers, and in what words
    asked, chat, messages      what it is asked and how it is told: two dialects
    completions, journal       an endpoint over time, and its log (ground truth)
    model_server               the server: in a test, or as a process
    workload, telemetry        what the two agent processes share
    llm, llm_openai,           what they say to a model, through the real client of
      llm_anthropic              one provider or the other
    agent, subagent            the research agent, and the service it calls
    population, forecast       who asks, how long their answer should take
    users, sockets             the same people over real connections, twice
    truth, measured, results   the model server's log against hangup's metrics
    service, child, harness    processes: start, run both passes, collect, end
    table                      both passes for a terminal
    scene, timeline, picture   a few runs as a page

*Truth* comes from the model server's log and the clients' own clocks only;
*measured* from the OpenTelemetry metrics that hangup recorded only. Both are on
``time.monotonic()``, which all processes of one machine share.

Needs the extra ``hangup[demo]``. This package imports nothing by itself.
"""
