"""A run on a Ray cluster: `srpo train RECIPE --ray`.

Ray starts, places and supervises; what each part does is what it does without Ray. `placement` says which places a
recipe needs and whether a cluster has them. `running` is the driver, `starting` puts workers and engines at their
places, `ranks` runs the training loop on every rank of Ray Train, `worlds` moves environments to workers, `copies` and
`servers` are the engines, `roster` knows who is where, and `watching` passes that on. Ray is imported where it is used,
not before.
"""
