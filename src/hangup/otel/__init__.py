"""On OpenTelemetry: decide at span start, measure at span end, carry on the wire."""
