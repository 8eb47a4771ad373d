"""HAProxy as Serve starts it, with what it lacks there: deadlines, bounds, answers in JSON, a stop."""
