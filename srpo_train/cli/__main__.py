"""``python -m srpo_train.cli`` is ``srpo``."""

from srpo_train.cli import main

main()
