"""Name the modules of both engines alike, line up shapes, fusions and shards, and judge the differences."""
