from __future__ import annotations

import pytest

from srpo_envs.errors import ConfigError, PolicyLoadError, UnknownIdError
from srpo_train.policies import Policy, Team


@pytest.fixture
def make_policy(tiny_policy):
    """A policy by id; the weights are shared, teams do not look at them."""

    def make(policy_id: str) -> Policy:
        return Policy(policy_id=policy_id, model=tiny_policy.model, tokenizer=tiny_policy.tokenizer)

    return make


@pytest.fixture
def policies(make_policy):
    return {"drafts": make_policy("drafts"), "rest": make_policy("rest")}


def test_a_shared_policy_answers_for_every_role(make_policy):
    policy = make_policy("all")
    team = Team.shared(policy)
    assert team.policy_of("solver") is team.policy_of("verifier") is policy


def test_isolated_roles_have_policies_of_their_own(policies):
    team = Team(policies, {"solver": "drafts", "verifier": "rest"})
    assert team.policy_of("solver").policy_id == "drafts"
    assert team.policy_of("verifier").policy_id == "rest"


def test_a_mixed_team_falls_back_to_its_default(policies):
    team = Team(policies, {"solver": "drafts", "*": "rest"})
    assert [team.policy_of(role).policy_id for role in ("solver", "verifier", "router")] == ["drafts", "rest", "rest"]


def test_a_role_without_policy_is_refused_with_the_nearest_one(policies):
    team = Team(policies, {"solver": "drafts"})
    with pytest.raises(ConfigError, match=r"role 'solvers'.*did you mean 'solver'"):
        team.policy_of("solvers")


def test_a_role_mapped_to_an_undefined_policy_is_refused(policies):
    with pytest.raises(ConfigError, match=r"role \'solver'.*'draft'.*did you mean 'drafts'"):
        Team(policies, {"solver": "draft"})


def test_an_unknown_policy_id_is_refused_with_the_nearest_one(policies):
    with pytest.raises(UnknownIdError, match="no policy 'draft'; did you mean 'drafts'"):
        Team(policies, {"*": "rest"})["draft"]


def test_a_key_that_differs_from_its_policy_s_id_is_refused(make_policy):
    with pytest.raises(ConfigError, match=r"policy \'a'.*under the key 'b'"):
        Team({"b": make_policy("a")}, {"*": "b"})


def test_a_team_needs_a_policy_and_a_role(policies):
    with pytest.raises(ConfigError, match="at least one policy"):
        Team({}, {"*": "a"})
    with pytest.raises(ConfigError, match="at least one role"):
        Team(policies, {})


def test_a_team_lists_its_policies_and_cannot_be_changed_from_outside(policies):
    roles = {"*": "rest"}
    team = Team(policies, roles)
    roles["*"] = "drafts"
    del policies["rest"]
    assert [policy.policy_id for policy in team] == ["drafts", "rest"]
    assert len(team) == 2
    assert team.policy_of("solver") is team["rest"]
    with pytest.raises(TypeError):
        team.policies["other"] = None


def test_a_team_loads_from_sources_and_options(tiny_checkpoint):
    specs = {"a": tiny_checkpoint, "b": {"source": str(tiny_checkpoint), "device": "cpu", "version": 5}}
    team = Team.load(specs, {"solver": "a", "*": "b"})
    assert team.policy_of("solver").policy_id == "a"
    assert team.policy_of("verifier").version == 5
    assert team["a"].model is not team["b"].model


@pytest.mark.parametrize(
    ("spec", "message"),
    [({"device": "cpu"}, "policy 'a' has no 'source'"), ({"source": "x", "dtyp": "bfloat16"}, "did you mean 'dtype'")],
)
def test_a_specification_that_cannot_be_used_is_refused(spec, message):
    with pytest.raises(ConfigError, match=message):
        Team.load({"a": spec}, {"*": "a"})


def test_roles_are_checked_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="not defined"):
        Team.load({"a": "/nowhere"}, {"*": "b"})
    with pytest.raises(PolicyLoadError):
        Team.load({"a": "/nowhere"}, {"*": "a"})
