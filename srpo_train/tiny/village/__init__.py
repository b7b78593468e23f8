"""Questions about a village, and the team that searches for the answers."""
