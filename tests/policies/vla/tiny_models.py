"""Small configurations of the models that others publish."""

from __future__ import annotations

from robot_rl.policies.nets.vlm import ByteTokens


def tiny_config(family: str) -> dict[str, object]:
    """A configuration of about a third of a million weights: the family's real classes, small sizes."""
    vocabulary = ByteTokens.size
    text = {
        "vocab_size": vocabulary, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 3, "max_position_embeddings": 1024,
    }  # fmt: skip
    vision = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "image_size": 64, "patch_size": 16,
    }  # fmt: skip
    if family == "smolvlm":
        return {
            "model_type": "smolvlm", "text_config": {"model_type": "llama", **text}, "vision_config": vision,
            "scale_factor": 2, "image_token_id": ByteTokens.picture, "pad_token_id": 0,
        }  # fmt: skip
    if family == "paligemma":
        return {
            "model_type": "paligemma", "text_config": {"model_type": "gemma", **text},
            "vision_config": {
                "model_type": "siglip_vision_model", "projection_dim": 64, "vision_use_head": False, **vision,
            },
            "image_token_id": ByteTokens.picture, "projection_dim": 64, "hidden_size": 64,
        }  # fmt: skip
    pixels = {**vision, "image_size": [64, 64], "patch_size": [16, 16]}
    return {
        "model_type": "internvl", "text_config": {"model_type": "qwen2", **text}, "vision_config": pixels,
        "image_token_id": ByteTokens.picture, "downsample_ratio": 0.5,
    }  # fmt: skip
