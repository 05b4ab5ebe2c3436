"""Several tenants in one pool: their keys, their shares, their turns. Pure; the master asks it."""
