"""The workflows of the workflow study, played by experts over any embedded task."""
