"""Vision-language-action: progress critics, policies, and the guard that checkpoints pass on loading."""
