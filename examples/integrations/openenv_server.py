"""A team's environment served in OpenEnv's protocol, and OpenEnv's own client playing it."""

import sys
import threading
import time

try:
    import uvicorn
    from openenv.core import GenericEnvClient
except ImportError:
    sys.exit("this example needs OpenEnv: pip install openenv uvicorn")
from srpo_envs.integrations.openenv import create_app

REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}

server = uvicorn.Server(
    uvicorn.Config(create_app("ArithmeticSolverVerifierFixed-v0", num_solvers=3), port=0, log_level="warning")
)
thread = threading.Thread(target=server.run)
thread.start()
while not server.started:
    time.sleep(0.01)
port = server.servers[0].sockets[0].getsockname()[1]

with GenericEnvClient(base_url=f"http://127.0.0.1:{port}").sync() as client:
    result = client.reset(seed=3)
    while not result.done:
        observation = result.observation
        print(f"{observation['event_id']}: {', '.join(member['agent'] for member in observation['members'])}")
        texts = [REPLIES[member["role"]] for member in observation["members"]]
        result = client.step({"event_id": observation["event_id"], "texts": texts})
    print("team reward:", result.metadata["outcome"]["reward"])

server.should_exit = True
thread.join()
