"""Rollouts and updates at the same time: which weights a batch may come from, and who waits for whom."""
