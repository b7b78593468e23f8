r"""Let agents that are not ours play an environment, and score them with the same metrics.

Three kinds: a plain function, an OpenAI-compatible endpoint started here, and a small state machine that calls a tool
before it answers, as agents built from graphs do. None of them knows anything of the environment but its prompts.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from srpo_train.engines.agent import AgentReply
from srpo_train.engines.openai import OpenAIEngine
from srpo_train.evaluation import evaluate_agent

ENV = "ArithmeticSolverVerifier-v0"
SETTINGS = {"env_kwargs": {"level": 3, "split": "test"}, "num_tasks": 32, "samples_per_task": 2}


def expression(prompt):
    return re.search(r"Compute (\S+) from left", prompt)[1]


# --- 1. a function from a member to its answer ---------------------------------------------------------------------


def careless(member):
    """Approve everything and answer with the last digit in sight."""
    if member.role == "verifier":
        return "<verify>approve</verify>"
    return rf"\boxed{{{expression(member.prompt)[-1]}}}"


# --- 2. an endpoint: here a toy model behind HTTP, elsewhere vLLM, llama.cpp or a provider -------------------------


class ToyEndpoint(BaseHTTPRequestHandler):
    """Answers POST /v1/chat/completions; it reads from left to right but cannot multiply."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["messages"][-1]["content"]
        if "<verify>" in prompt:
            text = "<verify>approve</verify>"
        else:
            text = rf"\boxed{{{calculate(expression(prompt).replace('*', '+'))}}}"
        message = {"role": "assistant", "content": text}
        answer = {
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"completion_tokens": len(text) // 4},
        }
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


# --- 3. a graph of steps with a tool --------------------------------------------------------------------------------


def calculate(formula):
    """The agent's tool: one operation after the other, mod 10."""
    first, *steps = re.findall(r"^\d+|[+*-]\d+", formula)
    value = int(first)
    for step in steps:
        number = int(step[1:])
        value = {"+": value + number, "-": value - number, "*": value * number}[step[0]]
    return value % 10


class ToolAgent:
    """Nodes read and write one state and name the next node, until there is none."""

    def __call__(self, member):
        state = {"messages": [("user", member.prompt)], "role": member.role}
        node = self.plan
        while node is not None:
            node = node(state)
        thoughts = sum(len(text) // 4 for _, text in state["messages"][1:])
        return AgentReply(text=state["messages"][-1][1], num_tokens=thoughts)  # what the way to the answer cost

    def plan(self, state):
        if state["role"] == "verifier":
            return self.judge
        state["messages"].append(("tool call", expression(state["messages"][0][1])))
        return self.use_tool

    def use_tool(self, state):
        state["messages"].append(("tool", str(calculate(state["messages"][-1][1]))))
        return self.answer

    def answer(self, state):
        state["messages"].append(("assistant", rf"The tool says \boxed{{{state['messages'][-1][1]}}}."))
        return None

    def judge(self, state):
        state["messages"].append(("assistant", "<verify>approve</verify>"))
        return None


# --- all of them, and a team of two ---------------------------------------------------------------------------------

server = ThreadingHTTPServer(("127.0.0.1", 0), ToyEndpoint)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = OpenAIEngine("endpoint", f"http://127.0.0.1:{server.server_address[1]}/v1", model="toy")
try:
    for name, agent in {
        "a plain function": careless,
        "an endpoint": endpoint,
        "a graph with a tool": ToolAgent(),
        "endpoint drafts, graph decides": {"solver": endpoint, "*": ToolAgent()},
    }.items():
        metrics = evaluate_agent(agent, ENV, **SETTINGS).metrics
        print(
            f"{name:32} Avg@2 {metrics['eval/avg_at_k']:.2f}  Pass@2 {metrics['eval/pass_at_k']:.2f}  "
            f"calls {metrics['eval/num_calls']:.0f}  tokens {metrics['eval/num_tokens']:.0f}"
        )
finally:
    endpoint.close()
    server.shutdown()
    server.server_close()
