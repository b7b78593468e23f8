"""The learner: objectives, batching, policies and engines, rollouts, checkpoints, evaluation and command line."""
