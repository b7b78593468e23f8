"""SRPO inside other people's trainers, one module each; none is imported unless it is asked for.

`srpo_train.integrations.trl` needs TRL, `srpo_train.integrations.verl` needs verl.
See ``docs/integrations-training.md``.
"""
