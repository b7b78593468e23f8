"""Environments by id, and the same ids in gymnasium and pettingzoo."""

from __future__ import annotations

import functools
import inspect
import json
import sys

import gymnasium
import pettingzoo
import pytest

import srpo_envs
from srpo_envs import registry
from srpo_envs.errors import ConfigError, RegistrationError, UnknownIdError
from srpo_envs.registry import Pairing, accepted_arguments
from srpo_envs.tasks.arithmetic import Arithmetic
from srpo_envs.views import AecSetEnv, JointSetEnv, ParallelSetEnv
from srpo_envs.workflows.single_agent import SingleAgent
from srpo_envs.workflows.solver_verifier import SolverVerifier

FIXED = "srpo_envs/ArithmeticSolverVerifierFixed-v0"
PAIR = Pairing("srpo_envs.workflows.single_agent:SingleAgent", "srpo_envs.tasks.arithmetic:Arithmetic")


@pytest.fixture
def own_ids(monkeypatch):
    """Let a test register ids that are gone afterwards, in all three registries."""
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    theirs = (gymnasium.registry, pettingzoo.parallel_registry, pettingzoo.aec_registry)
    before = [set(entries) for entries in theirs]
    yield
    for entries, kept in zip(theirs, before, strict=True):
        for name in set(entries) - kept:
            del entries[name]


# --- ids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Arithmetic", "Math"])
@pytest.mark.parametrize(
    "workflow",
    [
        "SingleAgent",
        "SolverVerifier",
        "SolverVerifierFixed",
        "SolverVerifierRouted",
        "EvalOpt",
        "Voting",
        "OrchestratorWorkers",
    ],
)
def test_every_pair_has_an_id(family, workflow):
    assert f"srpo_envs/{family}{workflow}-v0" in srpo_envs.list_envs()


@pytest.mark.parametrize("name", [FIXED, "ArithmeticSolverVerifierFixed-v0", "ArithmeticSolverVerifierFixed"])
def test_namespace_and_version_may_be_left_out(name):
    env = srpo_envs.make(name)
    assert env.env_id == FIXED
    assert env.variant == "fixed"


def test_the_newest_version_is_meant_when_none_is_named(own_ids):
    for version in (2, 10, 9):
        srpo_envs.register(f"me/Solo-v{version}", PAIR)
    assert srpo_envs.make("me/Solo").env_id == "me/Solo-v10"


def test_an_unknown_id_names_the_nearest():
    with pytest.raises(UnknownIdError, match="did you mean 'srpo_envs/ArithmeticSolverVerifier-v0'"):
        srpo_envs.make("ArithmeticSolverVerifer-v0")


def test_a_wrong_version_names_the_existing_ones(own_ids):
    srpo_envs.register("me/Solo-v0", PAIR)
    srpo_envs.register("me/Solo-v1", PAIR)
    with pytest.raises(UnknownIdError, match="no version 7 of 'me/Solo'; existing: v0, v1"):
        srpo_envs.make("me/Solo-v7")


def test_an_unknown_id_is_a_key_error():
    with pytest.raises(KeyError):
        srpo_envs.spec("nothing like it")


# --- arguments ----------------------------------------------------------------------------------------------------


def test_arguments_reach_family_workflow_and_limits():
    env = srpo_envs.make(FIXED, level=1, split="test", size=7, num_solvers=5, max_events=9, invalid_penalty=0.25)
    assert (env.tasks.level, env.tasks.split, env.tasks.num_tasks) == (1, "test", 7)
    assert (env.num_solvers, env.max_events, env.roles["solver"].invalid_penalty) == (5, 9, 0.25)


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(ConfigError, match="no argument 'num_solver'; did you mean 'num_solvers'"):
        srpo_envs.make(FIXED, num_solver=5)


def test_what_an_id_stands_for_cannot_be_changed():
    with pytest.raises(ConfigError, match="no argument 'variant'"):
        srpo_envs.make(FIXED, variant="routed")


@pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}, Arithmetic()])
def test_an_argument_that_is_no_json_value_is_refused(value):
    with pytest.raises(ConfigError, match="'level' must be a JSON value"):
        srpo_envs.make(FIXED, level=value)


def test_a_stored_episode_rebuilds_its_environment():
    env = srpo_envs.make("ArithmeticSingleAgent-v0", level=1, invalid_penalty={"solver": 0.3})
    active = env.reset(seed=0)
    env.step(active.outputs(["no box"]))
    episode = env.episode
    kwargs = json.loads(json.dumps(episode.env_kwargs))
    rebuilt = srpo_envs.make(episode.env_id, **kwargs)
    rebuilt.resume(episode)
    assert rebuilt.episode == episode
    assert episode.penalty == pytest.approx(0.3)


def test_registered_arguments_are_defaults_and_are_stored(own_ids):
    srpo_envs.register("me/Small-v0", PAIR, level=1, size=3)
    env = srpo_envs.make("me/Small-v0", size=5)
    assert (env.tasks.level, env.tasks.num_tasks) == (1, 5)
    assert env.env_kwargs == {"level": 1, "size": 5}


def test_a_caller_cannot_reach_the_registered_defaults(own_ids):
    srpo_envs.register("me/Penalties-v0", PAIR, invalid_penalty={"solver": 0.2})
    srpo_envs.make("me/Penalties-v0").env_kwargs["invalid_penalty"]["solver"] = 9.0
    assert srpo_envs.make("me/Penalties-v0").roles["solver"].invalid_penalty == 0.2


def test_a_spec_lists_the_arguments_of_both_halves():
    names = set(srpo_envs.spec(FIXED).arguments())
    assert {"level", "split", "size", "seed", "num_solvers", "max_rounds", "max_events", "max_new_tokens"} <= names
    assert not names & {"self", "tasks", "roles", "variant", "limits"}


def test_arguments_of_a_class_are_followed_up_to_its_parents():
    assert "max_events" in accepted_arguments(SolverVerifier)
    assert set(accepted_arguments(Arithmetic)) == {"level", "split", "size", "seed"}


def test_a_function_that_takes_anything_says_so():
    kinds = {item.kind for item in accepted_arguments(lambda **anything: None).values()}
    assert kinds == {inspect.Parameter.VAR_KEYWORD}


def test_two_halves_with_one_argument_name_are_refused(own_ids):
    srpo_envs.register("me/Clash-v0", Pairing(f"{__name__}:SeededWorkflow", PAIR.family))
    with pytest.raises(RegistrationError, match="both take \\['seed'\\]"):
        srpo_envs.make("me/Clash-v0")


class SeededWorkflow(SingleAgent):
    def __init__(self, tasks, seed=0):
        super().__init__(tasks)


# --- registering --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env_id", ["NoNamespace-v0", "me/NoVersion", "me/Bad name-v0", "me/Debate-v", "/Debate-v0", ""]
)
def test_a_malformed_id_is_refused(env_id):
    with pytest.raises(RegistrationError, match="namespace/Name-vN"):
        srpo_envs.register(env_id, PAIR)


def test_an_id_is_registered_once():
    with pytest.raises(RegistrationError, match="already registered"):
        srpo_envs.register(FIXED, PAIR)


def test_an_entry_point_that_names_nothing_is_refused_when_made(own_ids):
    srpo_envs.register("me/Lost-v0", "srpo_envs.workflows.single_agent:Nothing")
    with pytest.raises(RegistrationError, match="has no 'Nothing'"):
        srpo_envs.make("me/Lost-v0")


@pytest.mark.parametrize(
    "entry_point", [PAIR, functools.partial(SingleAgent, Arithmetic()), lambda: SingleAgent(Arithmetic())]
)
def test_any_callable_can_be_registered(own_ids, entry_point):
    srpo_envs.register("me/Mine-v0", entry_point)
    env = srpo_envs.make("me/Mine-v0")
    assert isinstance(env, SingleAgent)
    assert env.env_id == "me/Mine-v0"


# --- the other registries -----------------------------------------------------------------------------------------


def test_gymnasium_and_pettingzoo_know_every_id():
    for env_id in srpo_envs.list_envs():
        assert gymnasium.spec(env_id).id == env_id
        assert pettingzoo.spec("parallel", env_id).id == env_id
        assert pettingzoo.spec("aec", env_id).id == env_id


def test_ids_of_users_reach_the_other_registries(own_ids):
    srpo_envs.register("me/Solo-v0", PAIR)
    assert isinstance(gymnasium.make("me/Solo-v0", level=1).unwrapped, JointSetEnv)
    assert isinstance(pettingzoo.make("parallel", "me/Solo-v0", level=1), ParallelSetEnv)
    assert isinstance(pettingzoo.make("aec", "me/Solo-v0", level=1), AecSetEnv)


def test_arguments_pass_through_the_other_registries():
    assert gymnasium.make(FIXED, num_solvers=5).unwrapped.set_env.num_solvers == 5
    assert pettingzoo.make("parallel", FIXED, num_solvers=5).possible_agents[4] == "solver_4"


def test_a_gymnasium_spec_can_be_stored_as_json():
    stored = gymnasium.make(FIXED, num_solvers=4).spec.to_json()
    env = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(stored))
    assert env.unwrapped.set_env.num_solvers == 4


# --- ids that name their module -----------------------------------------------------------------------------------


@pytest.fixture
def own_module(tmp_path, monkeypatch, own_ids):
    """A module in the working folder that registers one environment."""
    name = "own_worlds_for_tests"
    (tmp_path / f"{name}.py").write_text(
        "from srpo_envs import register\n"
        "from srpo_envs.tasks.arithmetic import Arithmetic\n"
        "from srpo_envs.workflows.single_agent import SingleAgent\n"
        "register('own/Alone-v0', lambda level=1: SingleAgent(Arithmetic(level)))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    forget(name)


def forget(module):
    """Bring back the state of a process that has never imported the module."""
    sys.modules.pop(module, None)
    for ids in (registry._specs, gymnasium.registry, pettingzoo.parallel_registry, pettingzoo.aec_registry):
        ids.pop("own/Alone-v0", None)


def test_an_id_may_name_the_module_that_registers_it(own_module):
    with pytest.raises(UnknownIdError, match="own/Alone-v0"):
        srpo_envs.make("own/Alone-v0")
    env = srpo_envs.make(f"{own_module}:own/Alone-v0", level=2)
    assert env.env_id == f"{own_module}:own/Alone-v0"
    assert env.env_kwargs == {"level": 2}


def test_a_stored_episode_of_such_an_id_replays_where_nothing_was_imported(own_module):
    env = srpo_envs.make(f"{own_module}:own/Alone-v0")
    active = env.reset(seed=0)
    env.step(active.outputs(["no answer"]))
    forget(own_module)
    assert srpo_envs.replay(env.episode) == env.episode


def test_a_module_that_is_not_there_is_a_clear_error():
    with pytest.raises(UnknownIdError, match=r"no module 'nowhere_at_all'.*folder the program runs in"):
        srpo_envs.make("nowhere_at_all:own/Alone-v0")
