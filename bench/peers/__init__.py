"""Rivals, each a program of its own: `python -m bench.peers.mooncake_store --rounds 3`.

They run in their own virtual environment (`make bench-peers` makes it), so nothing here imports
moonpool or anything else that is not in the standard library, the rival apart.
"""
