"""Workflows: one schedule per file."""
