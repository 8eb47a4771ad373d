"""A decode step that masks and draws on the device, captured as one graph.

plan: which sequences take part --tables: automata as tensors--> step
"""
