"""Names of torchvision that vllm-ascend's import of every image model needs; no image model runs here.

The registry's torchvision fits one build of torch only, and transformers imports it wherever it is installed. This one
has no metadata, so transformers takes it for absent, and every use of it is an AttributeError.
"""
