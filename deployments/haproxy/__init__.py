"""HAProxy as Serve starts it, with what the configuration of Serve lacks: deadlines, bounds, answers in JSON, a stop."""
