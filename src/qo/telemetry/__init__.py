"""How qo joins the traces of its users. It imports OpenTelemetry only where somebody has installed it."""
