"""Attention over paged keys and values: one interface, one file for each way to compute it."""
