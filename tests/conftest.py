"""For all tests: property tests never fail on time, and print how to replay a failure."""

from hypothesis import settings

settings.register_profile("moonpool", deadline=None, print_blob=True)
settings.load_profile("moonpool")
