"""A run on a cluster of two nodes on this machine, in a process of its own: ``python ray_two_nodes.py NUM_CPUS ARGS``.

The arguments are those of ``srpo``; the address of the cluster is added to them.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    from srpo_train.cli import main

    cpus, *arguments = sys.argv[1:]
    settings = {"num_cpus": float(cpus), "object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**settings, "temp_dir": f"{os.environ['RAY_TMPDIR']}/ray"})
    try:
        cluster.add_node(**settings)
        sys.argv = ["srpo", *arguments, "--set", f"ray.address={cluster.address}"]
        main()
    finally:
        cluster.shutdown()
