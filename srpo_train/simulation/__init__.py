"""What a cluster would do: a discrete-event model of rollouts, updates and pushes, by the rules of the trainer."""
