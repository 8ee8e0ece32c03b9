"""Part of the stand-in for torchair; vllm-ascend loads it again, so it has to be a file."""
