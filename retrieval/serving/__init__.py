"""The parts of the search server: its protocol, its queue, its metrics and its web application."""
