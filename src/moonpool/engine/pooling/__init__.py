"""The engine's connection to the pool: what to load, loading, storing, and doing without.

Nothing here can make an answer wrong or late without end: every call has a deadline, and whatever
the pool does not give in time and whole is computed.
"""
