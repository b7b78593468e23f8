"""verifiers evaluates a team against an OpenAI-compatible endpoint.

    python verifiers_eval.py http://127.0.0.1:8000/v1 my-model

The endpoint may be any, one of ``srpo serve-policy`` too. Without one a small endpoint of this script answers, which
knows what each role says. The same from the shell, in this folder:
``vf-eval arithmetic_team -n 2 --model my-model --client.base-url http://127.0.0.1:8000/v1 --no-push``.
"""

import asyncio
import http.server
import json
import sys
import tempfile
import threading

try:
    from verifiers.v1.cli.eval.runner import run_eval
    from verifiers.v1.configs.cli.eval import EvalConfig
except ImportError:
    sys.exit("this example needs verifiers: pip install verifiers")

REPLIES = {"solver": r"\boxed{4}", "verifier": "<verify>approve</verify>", "aggregator": r"\boxed{4}"}


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers with the text of the role that a request names as its model."""

    def do_POST(self):
        model = json.loads(self.rfile.read(int(self.headers["content-length"])))["model"]
        choice = {"index": 0, "message": {"role": "assistant", "content": REPLIES[model]}, "finish_reason": "stop"}
        reply = {"id": "0", "object": "chat.completion", "created": 0, "model": model, "choices": [choice]}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


if len(sys.argv) == 3:
    base_url, models = sys.argv[1], dict.fromkeys(REPLIES, sys.argv[2])
else:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base_url, models = f"http://127.0.0.1:{server.server_port}/v1", {role: role for role in REPLIES}

with tempfile.TemporaryDirectory() as folder:
    config = EvalConfig.model_validate(
        {
            "env": {
                "taskset": {"id": "arithmetic_team", "num_tasks": 2},
                "max_concurrent_agents": None,
                **{role: {"model": model} for role, model in models.items()},
            },
            "client": {"base_url": base_url},
            "push": False,
            "rich": None,
            "output_dir": folder,
        }
    )
    episodes = asyncio.run(run_eval(config))

for episode in episodes:
    for trace in episode.traces:
        seat = trace.task.data
        print(f"{seat.event_id} {seat.agent} (K = {seat.cardinality}): {trace.last_reply} -> {trace.reward:g}")
