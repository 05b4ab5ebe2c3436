"""Trains the small decoder of `moonpool.sparse.decoder`: `python -m moonpool.sparse.training`."""
