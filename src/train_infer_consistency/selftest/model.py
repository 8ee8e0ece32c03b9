"""A tiny random Qwen2 or Qwen3 with a tokenizer of its own, made without a network: ``...selftest.model FOLDER``.

The weights are float32 numbers that bfloat16 can hold exactly, so that an engine which passes them on in bfloat16 (as
verl's FSDP2 does to its rollout) computes with the same ones. They are drawn from a seed: two calls write equal files.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, Literal

Architecture = Literal["qwen2", "qwen3"]

#: One token for each byte, then the specials.
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INTERMEDIATE, POSITIONS = 64, 2, 4, 2, 16, 128, 2048
#: Large enough that a layer's output differs visibly from its input, small enough that nothing saturates.
SPREAD = 0.1
#: Heads of 64, which the attention kernels of cards take; wider sums need smaller weights.
CARD = {"hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
CARD_SPREAD = 0.05
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer() -> Any:
    """Return a tokenizer with a token for each byte and Qwen's specials; every text can be encoded and decoded."""
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    end, _, turn = SPECIALS
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=turn,
        pad_token=end,
        additional_special_tokens=list(SPECIALS),
        model_max_length=POSITIONS,
        chat_template=CHAT,
    )


def make_config(architecture: Architecture, vocabulary: int, eos: int, pad: int, **changes: Any) -> Any:
    """Return the model's configuration; ``changes`` replace single fields of it."""
    transformers: Any = importlib.import_module("transformers")
    fields = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }
    if architecture == "qwen3":
        return transformers.Qwen3Config(**{**fields, "head_dim": HEAD, **changes})
    return transformers.Qwen2Config(**{**fields, **changes})


def write_model(
    folder: Path, architecture: Architecture = "qwen2", seed: int = 0, *, spread: float = SPREAD, **changes: Any
) -> Path:
    """Write model and tokenizer into a new folder, as ``from_pretrained`` reads them.

    Args:
        folder: made if it is missing.
        architecture: whose.
        seed: of the weights.
        spread: their standard deviation.
        changes: fields of the configuration to set differently.

    Returns:
        The folder.
    """
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    tokenizer = make_tokenizer()
    config = make_config(architecture, len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, **changes)
    kind = transformers.Qwen3ForCausalLM if architecture == "qwen3" else transformers.Qwen2ForCausalLM
    model = kind(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # A norm's weights stay around 1, where a checkpoint's are; all ones would hide a norm that is not applied.
            centre = 1.0 if name.endswith("norm.weight") else 0.0
            drawn = centre + spread * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(drawn.bfloat16().float())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def main(arguments: list[str]) -> int:
    """Write the model that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to")
    parser.add_argument("--architecture", choices=("qwen2", "qwen3"), default="qwen2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heads", type=int, default=HEADS, help="of attention; half as many have keys and values")
    parser.add_argument("--card", action="store_true", help="with heads as large as cards need them")
    options = parser.parse_args(arguments)
    heads = {"num_attention_heads": options.heads, "num_key_value_heads": options.heads // 2}
    changes, spread = (CARD, CARD_SPREAD) if options.card else (heads, SPREAD)
    write_model(options.folder, options.architecture, options.seed, spread=spread, **changes)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
