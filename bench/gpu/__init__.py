"""Checks and figures that need a CUDA machine; `bench/gpu/run` is the one command."""
