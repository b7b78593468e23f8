"""The same tensors through TRL's own trainers: losses, their gradients and advantages agree to 1e-5.

Only model and engine are replaced: TRL's `_compute_loss` asks a stand-in for log-probabilities, and gets ours.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from srpo_train.objective import (
    AdvantageSpec,
    CreditTable,
    LossTensors,
    estimate_advantage,
    objective_value,
    preset,
)

trl = pytest.importorskip("trl", reason="TRL is not installed (pip install --no-deps trl==1.16.0)")
if not trl.__version__.startswith("1.16."):
    pytest.skip(f"written for the internals of TRL 1.16, found {trl.__version__}", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("default")  # TRL's own imports warn

ROWS, TOKENS = 6, 7


def make_rows(seed: int = 0, spread: float = 0.4) -> LossTensors:
    """Single responses, as in TRL: one event of one member each, with 1 to 7 tokens and ratios on both sides of 1."""
    generator = torch.Generator().manual_seed(seed)
    old_MT = -3 * torch.rand(ROWS, TOKENS, generator=generator, dtype=torch.float64)
    length_M = torch.tensor([7, 1, 4, 3, 6, 2])
    return LossTensors(
        current_MT=(old_MT + spread * torch.randn(old_MT.shape, generator=generator, dtype=torch.float64)),
        old_MT=old_MT,
        token_mask_MT=torch.arange(TOKENS) < length_M[:, None],
        event_of_row_M=torch.arange(ROWS),
        cardinality_E=torch.ones(ROWS, dtype=torch.int64),
        advantage_E=torch.tensor([1.2, -0.7, 0.3, -1.4, 0.0, 0.6], dtype=torch.float64),
        reference_MT=old_MT + 0.1 * torch.randn(old_MT.shape, generator=generator, dtype=torch.float64),
    )


def stand_in(current_MT: torch.Tensor, **settings: object) -> SimpleNamespace:
    """What TRL's loss reads of its trainer, with a single process and no accumulation."""
    arguments = {"delta": None, "use_bias_correction_kl": False, "steps_per_generation": 1}
    accelerator = SimpleNamespace(
        num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value, gather_for_metrics=None
    )
    defaults = {
        "_get_per_token_logps_and_entropies": lambda *a, **k: (current_MT, torch.zeros_like(current_MT), None),
        "_metrics": {"train": defaultdict(list)},
        "accelerator": accelerator,
        "args": SimpleNamespace(**(arguments | {"delta": settings.pop("delta", None)})),
        "aux_loss_enabled": False,
        "beta": 0.0,
        "current_gradient_accumulation_steps": 1,
        "epsilon_high": 0.2,
        "epsilon_low": 0.2,
        "importance_sampling_level": "token",
        "loss_type": "grpo",
        "max_completion_length": TOKENS,
        "model": SimpleNamespace(training=True),
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
    }
    return SimpleNamespace(**(defaults | settings))


def trl_loss(trainer: type, rows: LossTensors, **settings: object) -> tuple[float, torch.Tensor]:
    """TRL's loss and its gradient in the log-probabilities."""
    current_MT, mask_MT = rows.current_MT.clone().requires_grad_(), rows.token_mask_MT.long()
    inputs = {
        "prompt_ids": torch.zeros(ROWS, 1, dtype=torch.int64),
        "prompt_mask": torch.ones(ROWS, 1, dtype=torch.int64),
        "completion_ids": torch.zeros(ROWS, TOKENS, dtype=torch.int64),
        "completion_mask": mask_MT,
        "advantages": rows.advantage_E,
        "old_per_token_logps": rows.old_MT,
        "old_logps": (rows.old_MT * mask_MT).sum(1),
        "ref_per_token_logps": rows.reference_MT,
        "num_items_in_batch": mask_MT.sum(),
    }
    loss = trainer._compute_loss(stand_in(current_MT, **settings), None, inputs)
    loss.backward()
    return loss.item(), current_MT.grad


def our_loss(objective, rows: LossTensors, scale: float = 1.0) -> tuple[float, torch.Tensor]:
    current_MT = rows.current_MT.clone().requires_grad_()
    loss = -scale * objective_value(objective, LossTensors(**(vars(rows) | {"current_MT": current_MT})))
    loss.backward()
    return loss.item(), current_MT.grad


def assert_equal(ours: tuple[float, torch.Tensor], theirs: tuple[float, torch.Tensor]) -> None:
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5, abs=1e-8)
    assert torch.allclose(ours[1], theirs[1].double(), rtol=1e-5, atol=1e-8)


PLAIN = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": None}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "fields", "settings"),
    [
        ("grpo", PLAIN | {"reduction": "row"}, {"loss_type": "grpo"}),
        ("grpo", PLAIN, {"loss_type": "bnpo"}),
        ("grpo", {}, {"loss_type": "bnpo", "delta": 3.0}),  # TRL's two-sided clip is dual clip here
        ("dapo", {}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        ("grpo", PLAIN | {"reduction": "row", "kl_coef": 0.04}, {"loss_type": "grpo", "beta": 0.04}),
        (
            "gspo",
            {},
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "epsilon_low": 3e-4,
                "epsilon_high": 4e-4,
            },
        ),
    ],
)
def test_losses_of_the_grpo_family_equal_trl(name, fields, settings, seed):
    from trl import GRPOTrainer

    # GSPO's narrow range needs small steps for some of its sequences to lie inside.
    rows = make_rows(seed, spread=0.001 if name == "gspo" else 0.4)
    assert_equal(our_loss(preset(name, **fields), rows), trl_loss(GRPOTrainer, rows, **settings))


def test_dr_grpo_is_the_token_mean_times_a_constant():
    from trl import GRPOTrainer

    # It divides the sum over tokens by rows times the longest possible response; here 23 tokens, 6 rows of up to 7.
    rows = make_rows()
    scale = int(rows.token_mask_MT.sum()) / (ROWS * TOKENS)
    assert_equal(our_loss(preset("grpo", **PLAIN), rows, scale), trl_loss(GRPOTrainer, rows, loss_type="dr_grpo"))


def test_the_loss_of_rloo_equals_trl_with_a_ratio_and_at_the_first_update():
    from trl import RLOOTrainer

    rows = make_rows(spread=0.1)
    assert_equal(our_loss(preset("rloo", form="clipped"), rows), trl_loss(RLOOTrainer, rows))
    # Before any update TRL's ratio is 1, and its gradient that of the score function.
    fresh = LossTensors(**(vars(rows) | {"current_MT": rows.old_MT.clone()}))
    ours, theirs = our_loss(preset("rloo"), fresh)[1], trl_loss(RLOOTrainer, fresh)[1]
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-8)


@pytest.fixture(scope="module")
def scored(tiny_checkpoint):
    """Advantages that real trainers of TRL give to two questions with four sampled answers each."""
    pytest.importorskip("accelerate")
    datasets = pytest.importorskip("datasets")
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    rewards = [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 0.25, 1.0]
    prompts = [{"prompt": text} for text in ("ab", "cd") for _ in range(4)]
    advantages = {}
    for name, trainer_type, config_type in (("grpo", GRPOTrainer, GRPOConfig), ("rloo", RLOOTrainer, RLOOConfig)):
        config = config_type(
            output_dir=str(tiny_checkpoint.parent / f"trl-{name}"),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=3,
            beta=0.0,
            bf16=False,
            report_to=[],
            use_cpu=True,
            **({"normalize_advantages": False} if name == "rloo" else {}),
        )
        trainer = trainer_type(
            model=str(tiny_checkpoint),
            reward_funcs=lambda completions, **_: rewards,
            args=config,
            train_dataset=datasets.Dataset.from_list(prompts),
        )
        advantages[name] = trainer._generate_and_score_completions(prompts)["advantages"].tolist()
    return rewards, advantages


def test_advantages_equal_trl(scored):
    rewards, advantages = scored
    table = CreditTable(
        return_E=torch.tensor(rewards),
        group_E=torch.arange(2).repeat_interleave(4),
        event_of_row_M=torch.arange(8),
        episode_E=torch.arange(8),
    )
    # TRL adds 1e-4 to the deviation.
    grpo = AdvantageSpec(estimator="trajectory_relative", group_key=("group",), std_floor=1e-4)
    assert estimate_advantage(table, grpo).value.tolist() == pytest.approx(advantages["grpo"], abs=1e-5)
    rloo = estimate_advantage(table, preset("rloo").advantage).value
    assert rloo.tolist() == pytest.approx(advantages["rloo"], abs=1e-5)
