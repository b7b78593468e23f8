"""A run on a Ray cluster: `srpo train RECIPE --ray`.

Ray starts, places and supervises; what each part does is what it does without Ray. `placement` says which places a
recipe needs and whether a cluster has them, `running` is the driver, `ranks` runs the training loop on every rank of
Ray Train, `worlds` moves environments to workers, `copies` and `servers` are the engines, and `roster` knows who is
where. Only `connecting` and `running` import Ray, and only when they are called.
"""
