"""Chains of digits, and the team that works them out."""
