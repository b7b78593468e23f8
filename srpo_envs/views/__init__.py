"""Standard views of any `SetEnv`: PettingZoo Parallel and AEC, Gymnasium."""
