"""Correctness and speed of masks and decode steps on a GPU (`python -m benchmarks.gpu`).

models, grammars --> workload (an engine with timed steps) --> checks, figures --> report
"""
