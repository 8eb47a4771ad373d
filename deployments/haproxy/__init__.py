"""Configuration of HAProxy in front of the routers: deadlines, connection limits, JSON errors and graceful shutdown.

Ray Serve writes a configuration for HAProxy, and then starts the program of this package in place of HAProxy. The
program changes the configuration and starts the real HAProxy.
"""
