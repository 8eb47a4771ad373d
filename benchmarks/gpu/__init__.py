"""Masks and decode steps on a GPU: correctness first, then figures (`python -m benchmarks.gpu`).

models, grammars --> workload (an engine, its steps timed) --> checks, figures --> report
"""
