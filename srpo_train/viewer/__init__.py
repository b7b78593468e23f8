"""Looking at runs: their curves, their episodes event by event, and what the learner made of each.

A web page (`srpo_train.viewer.server`) and a terminal application (`srpo_train.viewer.terminal`) show the same things,
which the other modules find out: `runs` which runs there are, `index` and `query` which episodes, `curves` the metrics,
`credit` and `scoring` advantages and ratios, `timeline` one episode as events in order. Nothing here writes to a run,
but for the index beside its log.
"""
