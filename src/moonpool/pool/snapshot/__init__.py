"""The catalog on disk: it spares nodes their reports, and is believed only as far as they agree."""
