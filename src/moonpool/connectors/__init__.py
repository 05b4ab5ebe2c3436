"""Other people's engines on Moonpool: one package for each, loaded by the engine itself.

A connector translates; what it decides and moves is plain code that its tests run without the
engine. Nothing below this room knows of it.
"""

__all__: list[str] = []
