"""Stand-in for the device library's Python module; see torch_npu beside it."""
