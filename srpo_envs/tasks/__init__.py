"""Task families: items, words and grading."""
