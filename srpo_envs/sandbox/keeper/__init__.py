"""The keeper: the trusted process between the caller and one sandboxed program.

This package is started by path, as `keeper`, in a fresh interpreter that sees only the standard library: a small
process starts boxes quickly however large the trainer is, and what a program does never reaches the trainer's memory.
`inside` and `plain` are the only files that enter a box.
"""
