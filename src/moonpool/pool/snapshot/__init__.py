"""The catalog on disk: it makes a restart faster, and is believed only as far as nodes agree."""
