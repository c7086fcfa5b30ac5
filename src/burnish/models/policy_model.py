"""The policy: the model that PPO trains. It scores its own tokens; an engine (rollout/) generates with it."""

from __future__ import annotations

from burnish.models.role import LanguageModel


class PolicyModel(LanguageModel):
    """The trained role. In the first step it equals the reference, as its adapter starts at zero."""
