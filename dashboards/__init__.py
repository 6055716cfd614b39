"""What on-call and finance look at: dashboards, recording rules and alerts.

Read in this order, each imports only what stands above it::

    settings   thresholds, minimum volumes, windows: what you may want to change
    ids        uids and names that links rely on: what must not change
    series     every metric as Prometheus spells it, from hangup.otel.names
    promql     selectors and the few shapes of query
    rules      recording rules: hourly increases, from which months are summed
    queries    what is worth knowing, as expressions
    alerts     when to wake somebody, and when to file a ticket
    panels     Grafana's classic JSON for the few kinds of panel
    boards     variables, links and the frame of a dashboard
    waste, stopping, budgets   the three dashboards
    simulated, scenarios, unittests   what each alert must and must not fire at
    yamltext, files   the forms they are written in: JSON, YAML

``python -m dashboards`` writes ``dashboards/generated`` anew.
"""
