"""Tools that make what the packages ship; run from the root of the repository."""
