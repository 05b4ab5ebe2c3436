"""The catalog: what exists and where, who may write, what goes. Pure; see `catalog.Catalog`."""
