"""Reading and comparing mathematical answers: pure functions, importable on their own by the worker processes."""
