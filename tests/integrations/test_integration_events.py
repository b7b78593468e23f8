"""Events as ids of rows, for trainers that reorder, split and pad what they are given."""

from __future__ import annotations

import importlib
import math
import sys

import pytest
import torch
from factories import make_event, make_member
from hypothesis import given
from hypothesis import strategies as st

from srpo_envs.errors import ConfigError, IncompleteEventError, MissingPackageError, RecordError, ShapeError
from srpo_train.integrations.events import Events, EventUid, require_whole_vocabulary
from srpo_train.objective import estimate_advantage, preset

DRAFTS, VERDICT = EventUid("q", "solver", "q/e0", 2), EventUid("q", "verifier", "q/e1", 1)
IDS = [str(DRAFTS), "pad0", str(VERDICT), str(DRAFTS)]
"""Rows of an event of two and of an event of one, in no order, with a row that fills up."""


@given(st.text(), st.text(), st.text(), st.integers(1, 99))
def test_any_id_comes_back_from_its_text(group_id, event_type, event_id, cardinality):
    uid = EventUid(group_id, event_type, event_id, cardinality)
    assert EventUid.parse(str(uid)) == uid
    assert not str(uid).startswith("pad")


@pytest.mark.parametrize("text", ["q7", "[]", '["q", "solver", "q/e0"]', "3", '["q", "solver", "e", "many"]'])
def test_other_texts_are_refused(text):
    with pytest.raises(RecordError, match="expected the JSON list"):
        EventUid.parse(text)


def test_the_events_of_a_batch_are_read_from_its_ids():
    events = Events.of(IDS)
    assert list(events.uids) == [DRAFTS, VERDICT]
    assert events.row_M.tolist() == [0, 2, 3]
    assert events.event_of_row_M.tolist() == [0, 1, 0]
    assert events.cardinality_E.tolist() == [2, 1]
    assert events.from_rows(torch.tensor([0.5, 9.0, 0.25, 0.5]), "return").tolist() == [0.5, 0.25]


def test_rows_of_an_event_that_disagree_are_refused():
    with pytest.raises(ShapeError, match="'q/e0': expected one return"):
        Events.of(IDS).from_rows(torch.tensor([0.5, 0.0, 0.25, 0.75]), "return")


def test_events_are_credited_within_prompt_and_type():
    ids = [
        str(EventUid("q", kind, f"q/g{rollout}/{kind}", 1)) for rollout in range(2) for kind in ("solver", "verifier")
    ]
    events = Events.of(ids)
    table = events.credit(torch.tensor([1.0, 4.0, 0.0, 4.0]))
    advantage = estimate_advantage(table, preset("srpo").advantage).value
    # Solvers: returns 1 and 0, mean 1/2, sample deviation 1/sqrt(2). Verifiers: 4 and 4.
    assert advantage.tolist() == pytest.approx([math.sqrt(0.5), 0.0, -math.sqrt(0.5), 0.0], abs=1e-5)


def test_coefficients_are_the_closed_form_whatever_the_rows():
    # L of the drafts: (0.1 + 0.05) / sqrt 2; the masked token and the row that fills up do not count.
    current_NT = torch.tensor([[0.1, 5.0], [7.0, 7.0], [0.3, 0.0], [0.02, 0.03]])
    mask_NT = torch.tensor([[1, 0], [1, 1], [1, 1], [1, 1]])
    advantage_E = torch.tensor([2.0, -1.0])
    found_NT, report = Events.of(IDS).coefficients(
        preset("srpo"), advantage_E, mask_NT, torch.zeros_like(current_NT), current_NT
    )
    ratio = math.exp(0.15 / math.sqrt(2))
    drafts = 2.0 * ratio / math.sqrt(2) / 2  # A rho / sqrt(K) over two events
    verdict = -math.exp(0.3) / 2  # above 1 + 0.2, where a negative advantage is not clipped
    expected = [[drafts, 0.0], [0.0, 0.0], [verdict, verdict], [drafts, drafts]]
    assert torch.allclose(found_NT, torch.tensor(expected), rtol=1e-5)
    assert report["objective"] == pytest.approx((2.0 * ratio - math.exp(0.3)) / 2)
    assert report["num_rows"] == 3


def test_a_lost_row_is_an_error():
    zero_NT = torch.zeros(3, 1)
    with pytest.raises(IncompleteEventError, match="'q/e0': expected 2 members"):
        Events.of(IDS[1:]).coefficients(preset("srpo"), torch.ones(2), torch.ones(3, 1), zero_NT, zero_NT)


def test_without_verl_its_module_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "verl", None)
    monkeypatch.delitem(sys.modules, "srpo_train.integrations.verl", raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'verl==0\.9\.1'"):
        importlib.import_module("srpo_train.integrations.verl")


def test_rows_that_were_sampled_from_a_part_of_the_vocabulary_are_refused():
    plain = make_member(0)
    cut = make_member(1, length=2, kept_token_ids=((10, 7), (11,)))
    require_whole_vocabulary([make_event(2)])
    with pytest.raises(ConfigError, match=r"e0', member 1 \(solver_1\): sampled under top-k or top-p"):
        require_whole_vocabulary([make_event(2), make_event(2, members=(plain, cut))])
