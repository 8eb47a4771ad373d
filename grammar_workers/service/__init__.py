"""The grammar tier: a Serve deployment that compiles in processes which can be killed.

    deployment --service--> cached, stored, or once at a time: pool --lanes, fair_queue--> worker_handle --> worker
                                                                |                                            (compiles)
                                                                +--> fork_server: one warm process that forks the others
    autoscaling: by the backlog;  metrics;  gc_control: when Python collects garbage

The only package here that knows of Ray.
"""
