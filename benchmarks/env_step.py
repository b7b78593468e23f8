"""Microseconds per member of an environment step without a model: `SetEnv`, its views and public peers in one run.

Run it with ``python benchmarks/env_step.py``. The world is ``ArithmeticSolverVerifierFixed-v0`` with 1 to 32 solvers. A
scripted team drafts, is rejected once, drafts again, is approved and answers: five events, 2K + 3 members an episode;
reset, prompts, parsing, records, state digests and grading are included. A member is one output consumed; for the peers
it is one action of one agent, their reset included.

Peers: PettingZoo's rock-paper-scissors (parallel and AEC) and tic-tac-toe (AEC), which need ``pip install
'pettingzoo[classic]'``, and GEM's GuessTheNumber, a text game without a model, which needs ``pip install gem-llm``. One
that is not installed is left out with a line. They keep no record of what happened; ours can replay every episode.

Time is processor time of this process, and cells are measured in rounds that alternate with all others, the best round
counting, so that other work on the machine decides as little as possible.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import time
from collections.abc import Callable

import numpy as np
import pettingzoo

import srpo_envs
from srpo_envs import ActiveSet, AecSetEnv, JointSetEnv, ParallelSetEnv, SetEnv

CARDINALITIES = (1, 2, 4, 8, 16, 32)
GOAL_US = 50.0

Run = Callable[[], int]
"""Plays one episode and returns how many members it consumed."""


def script(active: ActiveSet) -> str:
    """Return what every member of a set answers: reject the first drafts, approve the second."""
    if active.event_type == "verifier":
        return "<verify>reject</verify>" if active.turn == 0 else "<verify>approve</verify>"
    return "3*7=1-4=7 \\boxed{7}"


# --- ours ---------------------------------------------------------------------------------------------------------


def set_env_run(env: SetEnv) -> Run:
    def run() -> int:
        members = 0
        active: ActiveSet | None = env.reset()
        while active is not None:
            members += active.cardinality
            active = env.step(active.outputs([script(active)] * active.cardinality)).next
        return members

    return run


def parallel_run(view: ParallelSetEnv) -> Run:
    def run() -> int:
        members = 0
        view.reset()
        while view.agents:
            pending = view.set_env.pending
            members += pending.cardinality
            view.step(dict.fromkeys(view.agents, script(pending)))
        return members

    return run


def aec_run(view: AecSetEnv) -> Run:
    def run() -> int:
        members = 0
        view.reset()
        while view.set_env.pending is not None:
            view.last()
            view.step(script(view.set_env.pending))
            members += 1
        return members

    return run


def joint_run(view: JointSetEnv) -> Run:
    def run() -> int:
        members = 0
        view.reset()
        while (pending := view.set_env.pending) is not None:
            members += pending.cardinality
            view.step(dict.fromkeys(view.action_space, script(pending)))
        return members

    return run


INTERFACES: dict[str, Callable[[SetEnv], Run]] = {
    "SetEnv": set_env_run,
    "PettingZoo parallel view": lambda env: parallel_run(ParallelSetEnv(env)),
    "PettingZoo AEC view": lambda env: aec_run(AecSetEnv(env)),
    "Gymnasium view": lambda env: joint_run(JointSetEnv(env)),
}


# --- peers --------------------------------------------------------------------------------------------------------


def rock_paper_scissors_parallel() -> Run:
    env = pettingzoo.make("parallel", "classic/rps-v2")

    def run() -> int:
        env.reset(seed=0)
        members = 0
        while env.agents:
            members += len(env.agents)
            env.step(dict.fromkeys(env.agents, 1))
        return members

    return run


def aec_peer(name: str) -> Run:
    env = pettingzoo.make("aec", name)

    def run() -> int:
        env.reset(seed=0)
        members = 0
        for _ in env.agent_iter():
            observation, _, terminated, truncated, _ = env.last()
            members += not (terminated or truncated)
            mask = observation.get("action_mask") if isinstance(observation, dict) else None
            env.step(None if terminated or truncated else 1 if mask is None else int(np.argmax(mask)))
        return members

    return run


def guess_the_number() -> Run:
    import gem

    logging.getLogger().setLevel(logging.WARNING)  # GEM turns on INFO for every library
    env = gem.make("game:GuessTheNumber-v0-easy")
    guesses = [f"\\boxed{{{number}}}" for number in range(1, 11)]

    def run() -> int:
        env.reset(seed=0)
        for members, guess in enumerate(itertools.cycle(guesses), start=1):
            _, _, terminated, truncated, _ = env.step(guess)
            if terminated or truncated:
                return members
        raise AssertionError("unreachable")

    return run


PEERS: dict[str, Callable[[], Run]] = {
    "PettingZoo rock-paper-scissors, parallel": rock_paper_scissors_parallel,
    "PettingZoo rock-paper-scissors, AEC": lambda: aec_peer("classic/rps-v2"),
    "PettingZoo tic-tac-toe, AEC": lambda: aec_peer("classic/tictactoe-v3"),
    "GEM GuessTheNumber": guess_the_number,
}


# --- measuring ----------------------------------------------------------------------------------------------------


def microseconds_per_member(run: Run, seconds: float) -> float:
    """Return the mean over at least `seconds` of episodes."""
    run()
    gc.collect()
    members = 0
    start = time.process_time()
    while (elapsed := time.process_time() - start) < seconds:
        members += run()
    return 1e6 * elapsed / members


def measure(runs: dict[str, Run], rounds: int, seconds: float) -> dict[str, float]:
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], microseconds_per_member(run, seconds))
    return best


def available_peers() -> dict[str, Run]:
    runs = {}
    for name, make_run in PEERS.items():
        try:
            runs[name] = make_run()
        except Exception as error:  # a peer that fails to load, for whatever reason, must not end the benchmark
            print(f"left out: {name} ({type(error).__name__}: {error})")
    return runs


def linear_fit(per_member: list[float]) -> tuple[float, float]:
    """Return the slope and intercept of microseconds per episode over its members, 2K + 3."""
    members = np.array([2 * cardinality + 3 for cardinality in CARDINALITIES])
    slope, intercept = np.polyfit(members, np.array(per_member) * members, 1)
    return float(slope), float(intercept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1, help="per cell and round")
    options = parser.parse_args()

    peers = available_peers()
    runs = dict(peers)
    for cardinality in CARDINALITIES:
        for name, make_run in INTERFACES.items():
            env = srpo_envs.make("ArithmeticSolverVerifierFixed-v0", num_solvers=cardinality)
            runs[f"{name}/{cardinality}"] = make_run(env)
    best = measure(runs, options.rounds, options.seconds)

    print(f"\n{'microseconds per member':42}" + "".join(f"{f'K={k}':>8}" for k in CARDINALITIES) + "   fit per episode")
    for name in INTERFACES:
        row = [best[f"{name}/{cardinality}"] for cardinality in CARDINALITIES]
        slope, intercept = linear_fit(row)
        verdict = "within" if max(row) < GOAL_US else "above"
        cells = "".join(f"{value:8.1f}" for value in row)
        print(f"{name:42}{cells}   {intercept:.0f} + {slope:.1f} a member, {verdict} {GOAL_US:.0f}")
    for name in peers:
        print(f"{name:42}{best[name]:8.1f}")


if __name__ == "__main__":
    main()
