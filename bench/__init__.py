"""Measurements on the running server."""
