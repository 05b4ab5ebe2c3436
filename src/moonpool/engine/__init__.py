"""A small real engine on Moonpool's paged cache and pool (extra `moonpool[engine]`)."""
