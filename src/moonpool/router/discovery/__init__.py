"""Where workers are found: one file per place, all giving whole lists."""
