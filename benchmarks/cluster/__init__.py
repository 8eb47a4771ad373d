"""A cluster of a thousand model replicas, simulated from what one machine shows (`python -m benchmarks.cluster`).

measured.json --> measured --> workload, ring, redis, compiler --> cluster --> outcome --> the tables

`benchmarks.cluster.measure` writes `measured.json` anew. The results file states the assumptions.
"""
