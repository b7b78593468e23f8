"""The public surface of `srpo_envs`: exactly these names, each documented."""

from __future__ import annotations

import inspect

import pytest

import retrieval
import srpo_envs

# fmt: off
NAMES = [
    "ActiveSet", "AecSetEnv", "Ask", "Budget", "ConformanceReport", "EnvSpec", "Episode", "Event", "FreeText",
    "JointSetEnv", "Malformed", "Member", "MemberOutput", "MemberRecord", "Outcome", "Pairing", "ParallelSetEnv",
    "Parsed", "Reply", "Role", "SCHEMA_VERSION", "Schedule", "SetEnv", "SrpoError", "StepResult",
    "SurroundingsError", "Task", "TaskFamily", "ToolCall", "Usage", "branch", "check_set_env", "errors",
    "list_envs", "make", "read_episodes", "register", "replay", "spec", "write_episodes",
]
# fmt: on


def test_the_public_names_are_these():
    assert sorted(srpo_envs.__all__) == sorted(NAMES)


def test_every_public_name_exists():
    for name in NAMES:
        assert hasattr(srpo_envs, name), name


def test_the_search_engines_are_named_by_their_package():
    assert sorted(retrieval.__all__) == [
        "Bm25Index", "CachedRetriever", "DenseRetriever", "EncoderSettings", "HttpRetriever", "HybridRetriever",
        "LuceneRetriever", "RecordingRetriever", "SearchServer", "ServerSettings", "TapeRetriever",
        "adopt_faiss_index", "build_dense_index", "build_lucene_index", "create_app", "open_any", "serve",
    ]  # fmt: skip
    for name in retrieval.__all__:
        assert inspect.getdoc(getattr(retrieval, name)), name
    with pytest.raises(AttributeError, match="no attribute 'Bm25Idnex'"):
        retrieval.Bm25Idnex  # noqa: B018


def test_every_public_class_and_function_is_documented():
    for name in NAMES:
        item = getattr(srpo_envs, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert inspect.getdoc(item), name


def test_every_public_method_is_documented():
    for name in NAMES:
        item = getattr(srpo_envs, name)
        if not inspect.isclass(item) or not item.__module__.startswith("srpo_envs"):
            continue
        for attribute, member in vars(item).items():
            if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{name}.{attribute}"


def test_every_error_says_what_it_is():
    classes = [item for item in vars(srpo_envs.errors).values() if inspect.isclass(item)]
    own = [item for item in classes if item.__module__ == "srpo_envs.errors"]
    assert all(issubclass(item, srpo_envs.SrpoError) for item in own)
    assert all("__doc__" in vars(item) and item.__doc__ for item in own)
    # Standard parents keep `except ValueError` and its like working.
    assert all(item is srpo_envs.SrpoError or item.__bases__ != (srpo_envs.SrpoError,) for item in own)
