"""Tests, in the same tree as the package. Files are named test_*.py; everything else is support."""
