"""PPO where each action is one of some choices: a softmax for each in place of the Gaussian."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import FusedOptions, fused_policy_loss
from robot_rl.advantage.fused import FusedLoss
from robot_rl.policies.nets.actor_critic import activate, torch_outputs
from robot_rl.policies.online.ppo_policy import PpoPolicy
from robot_rl.types import Action, Array, Obs, action_of, choice_of


def choice_loss(
    outputs: Mapping[str, Array], batch: Mapping[str, Array], options: FusedOptions, counts: Sequence[int]
) -> FusedLoss:
    """`fused_policy_loss` of a softmax policy, with the gradient of its logits.

    With log-probabilities l = logits - logsumexp and p = exp(l), d l_k / d logits = onehot(k) - p, and the entropy
    H = -sum p l has d H / d logits = -p (l + H). Several actions are chosen independently: log-probabilities and
    entropies add up.

    Args:
        outputs: "mean" (B, sum of the counts) the logits, "log_std" unused, "value" (B,).
        batch: as of `fused_policy_loss`, with "action" (B, A) in [-1, 1].
        options: coefficients; the entropy bonus is that of the choices.
        counts: (A,) how many choices each action has.
    """
    written_out = isinstance(outputs["mean"], np.ndarray)
    outputs, batch = ({name: torch.as_tensor(x) for name, x in columns.items()} for columns in (outputs, batch))
    logits = outputs["mean"].detach()
    parts = [part.log_softmax(-1) for part in logits.split(list(counts), -1)]
    every = torch.cat(parts, -1)
    index = torch.stack([choice_of(action, count).long() for action, count in zip(batch["action"].T, counts)], -1)
    index += torch.tensor([sum(counts[:i]) for i in range(len(counts))], device=index.device)
    shares = every.exp()
    plain = replace(options, entropy_coef=0.0)
    logp = every.gather(-1, index).sum(-1)
    found = fused_policy_loss({"logp": logp, "value": outputs["value"]}, batch, plain)
    d_logp = found.gradients["logp"][:, None]
    d_logits = -d_logp * shares
    d_logits.scatter_add_(-1, index, d_logp.expand(index.shape))
    loss = found.loss
    if options.entropy_coef:
        entropy = torch.stack([-(part.exp() * part).sum(-1) for part in parts], -1)
        own = entropy.repeat_interleave(torch.tensor(list(counts), device=entropy.device), -1)
        d_logits += shares * (every + own) * (options.entropy_coef / len(logits))
        loss = loss - options.entropy_coef * entropy.sum(-1).mean()
    gradients = {"mean": d_logits, "log_std": torch.zeros_like(outputs["log_std"]), "value": found.gradients["value"]}
    log_ratio = found.log_ratio
    if written_out:
        gradients, log_ratio = {name: x.numpy() for name, x in gradients.items()}, log_ratio.numpy()
    return FusedLoss(loss, gradients, log_ratio)


class ChoicePolicy(PpoPolicy):
    """A softmax over the choices of each action; `layout` has an output of the actor for every choice, and the last one
    of an action is 1."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Sample choices, or take the likeliest.

        Returns:
            value (B, A) in [-1, 1]; logp (B,) of it (None when deterministic); extras "raw", the value again.
        """
        first = obs[self._all[0]]
        if isinstance(first, Tensor):
            if first.device.type != "cpu" or self._params.device.type != "cpu" or torch.compiler.is_exporting():
                return self._act_on_device(obs, deterministic)
            found = self.act({key: obs[key].numpy() for key in self._all}, deterministic=deterministic)
            value = torch.from_numpy(found.value)
            return Action(value, None if found.logp is None else torch.from_numpy(found.logp), {"raw": value})
        h = self.read(obs)
        for weight, bias in self._actor:
            h = np.dot(h, weight)
            h += bias
            activate(h, self._activation)
        logits = np.dot(h, self._np["actor_weight"]) + self._np["actor_bias"]
        if deterministic:
            wished = logits
        else:  # the largest of logits with Gumbel noise is a sample of the softmax
            wished = logits + self._rng.gumbel(size=logits.shape).astype(np.float32)
        counts, start = self.io.action_choices, 0
        value, logp = np.empty((len(logits), len(counts)), np.float32), np.zeros(len(logits), np.float32)
        for i, count in enumerate(counts):
            own = logits[:, start : start + count]
            chosen = wished[:, start : start + count].argmax(-1)
            value[:, i] = action_of(chosen.astype(np.float32), count)
            if not deterministic:
                top = own.max(-1)
                logp += np.take_along_axis(own, chosen[:, None], -1)[:, 0]
                logp -= np.log(np.exp(own - top[:, None]).sum(-1)) + top
            start += count
        return Action(value, None if deterministic else logp, {"raw": value})

    @torch.no_grad()
    def _act_on_device(self, obs: Obs, deterministic: bool) -> Action:
        logits = torch_outputs(self._views, self._layout, self._read_on_device(obs), self._activation)["mean"]
        values, logps = [], []
        for own in logits.split(list(self.io.action_choices), -1):
            every = own.log_softmax(-1)
            if deterministic:
                chosen = every.argmax(-1, keepdim=True)
            else:
                chosen = torch.multinomial(every.exp(), 1, generator=self._device_rng)
            values.append(action_of(chosen.float(), own.shape[-1]))
            logps.append(every.gather(-1, chosen))
        value = torch.cat(values, -1)
        return Action(value, None if deterministic else torch.cat(logps, -1).sum(-1), {"raw": value})
