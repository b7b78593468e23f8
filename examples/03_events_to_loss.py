"""From recorded events to a loss, with nothing but the records and the objective's pure functions.

This is what you need to put SRPO into a trainer of your own.
"""

import torch

from srpo_train.objective import (
    CreditTable,
    LossTensors,
    estimate_advantage,
    objective_value,
    preset,
)

srpo = preset("srpo")

# Two rollouts of one question. Each has an event of three drafts (K = 3) and an event of one answer (K = 1).
table = CreditTable(
    return_E=torch.tensor([1.0, 1.0, 0.0, 0.0]),  # R_e, the downstream team return
    group_E=torch.tensor([0, 0, 0, 0]),  # one prompt
    event_type_E=torch.tensor([0, 1, 0, 1]),  # drafts are compared with drafts, answers with answers
    event_of_row_M=torch.tensor([0, 0, 0, 1, 2, 2, 2, 3]),
)
advantage_E = estimate_advantage(table, srpo.advantage).value
print("advantages:", advantage_E.tolist())

# Token log-probabilities of the eight member rows, four tokens each, under the behavior and the current policy.
generator = torch.Generator().manual_seed(0)
old_MT = -torch.rand(8, 4, generator=generator)
current_MT = (old_MT + 0.05 * torch.randn(8, 4, generator=generator)).requires_grad_()

tensors = LossTensors(
    current_MT=current_MT,
    old_MT=old_MT,
    token_mask_MT=torch.ones(8, 4, dtype=torch.bool),
    event_of_row_M=table.event_of_row_M,
    cardinality_E=torch.tensor([3, 1, 3, 1]),
    advantage_E=advantage_E,
)
loss = -objective_value(srpo, tensors)
loss.backward()
print("loss:", round(loss.item(), 6))
print("gradient of one token, K = 3:", current_MT.grad[0, 0].item())
print("gradient of one token, K = 1:", current_MT.grad[3, 0].item())
