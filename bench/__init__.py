"""Rivals and the machine's limits on the work of `moonpool bench`; not part of the package."""
