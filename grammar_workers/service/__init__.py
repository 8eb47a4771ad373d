"""Grammar compilers: a Ray Serve deployment that compiles constraints in child processes, which can be killed.

The modules, from the request to the compilation:

    deployment               the Serve deployment. No other module of this package imports Ray.
    service                  looks up a grammar, or has it compiled once in the cluster
    pool                     the compile processes, with their time and memory limits
    lanes, fair_queue        the order of waiting compilations
    worker_handle            the pool's side of the communication with a process
    fork_server              a process that has loaded the compiler, and forks the compile processes
    worker                   a compile process
    autoscaling, metrics     the number of replicas; figures for Prometheus
    memory_guard             the memory limit of a replica process
    tenant_threads           threads that serve tenants in rotation

The other modules have small helpers.
"""
