"""`make serve`: a Ray of its own on this machine, and its end.

launcher: the command line --> server: starts Ray, Serve and HAProxy --> stop: refuses, waits for what runs, ends
"""
