"""Tests with other people's engines, run by `make test-engines` only."""
